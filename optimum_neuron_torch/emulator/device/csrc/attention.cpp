// The fused scaled dot product attention: the hook where the real device puts its NKI flash kernel. Here it is the
// CPU's flash kernel, wherever that applies; everything else takes PyTorch's math path.
#include "kernels.h"

#include "operation.h"

#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

namespace neuron::kernels {
namespace {

std::optional<Tensor> host_bias(const Tensor& bias) {
  return bias.defined() ? std::optional<Tensor>(host_alias(bias)) : std::nullopt;
}

} // namespace

// torch.nn.TransformerEncoder in evaluation asks whether it may cut the padding away by a nested tensor, which the device
// does not have. It then computes with the padding, under the mask.
bool nested_tensor_from_mask_left_aligned(const Tensor& /*padded*/, const Tensor& /*mask*/) {
  return false;
}

// Reads nothing but metadata, so that it also answers for fake tensors.
int64_t fused_sdp_choice(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const auto choice = at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, attn_mask, dropout_p, is_causal, scale,
      enable_gqa);
  const bool needs_bias_gradient =
      attn_mask.has_value() && attn_mask->defined() && attn_mask->requires_grad() && at::GradMode::is_enabled();
  const bool is_flash = choice == static_cast<int64_t>(at::SDPBackend::flash_attention);
  return static_cast<int64_t>(
      is_flash && !needs_bias_gradient ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> fused_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& attn_bias,
    double dropout_p,
    bool is_causal,
    bool /*return_debug_mask*/,
    std::optional<double> scale) {
  static auto& record = record_named("aten::_scaled_dot_product_fused_attention_overrideable");
  const auto bias = attn_bias.value_or(Tensor());
  const Operation operation(record, {query, key, value, bias}, {dropout_p, is_causal, scale});
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      host_alias(query), host_alias(key), host_alias(value), dropout_p, is_causal, host_bias(bias), scale);
  return {
      operation.result(output), operation.result(logsumexp), Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
      Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_backward(
    const Tensor& grad_out,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& attn_bias,
    std::array<bool, 4> /*grad_input_mask*/,
    const Tensor& out,
    const Tensor& logsumexp,
    const Tensor& /*cum_seq_q*/,
    const Tensor& /*cum_seq_k*/,
    c10::SymInt /*max_q*/,
    c10::SymInt /*max_k*/,
    double dropout_p,
    bool is_causal,
    const Tensor& /*philox_seed*/,
    const Tensor& /*philox_offset*/,
    std::optional<double> scale) {
  static auto& record = record_named("aten::_scaled_dot_product_fused_attention_overrideable_backward");
  const Operation operation(
      record, {grad_out, query, key, value, attn_bias, out, logsumexp}, {dropout_p, is_causal, scale});
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      host_alias(grad_out), host_alias(query), host_alias(key), host_alias(value), host_alias(out),
      host_alias(logsumexp), dropout_p, is_causal, host_bias(attn_bias), scale);
  return {operation.result(grad_query), operation.result(grad_key), operation.result(grad_value), Tensor()};
}

} // namespace neuron::kernels
