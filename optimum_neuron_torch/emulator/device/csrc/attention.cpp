// The fused scaled dot product attention: the hook where the real device puts its NKI flash kernel. Here it is the
// CPU's flash kernel, wherever that applies; everything else takes PyTorch's math path.
#include "kernels.h"

#include "operation.h"

#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

namespace neuron::kernels {
namespace {

std::optional<Tensor> host_bias(const Tensor& bias) {
  return bias.defined() ? std::optional<Tensor>(host_alias(bias)) : std::nullopt;
}

// `gradient` in the memory layout that empty_like(input) has, as PyTorch's meta function of the backward promises.
Tensor laid_out_like(const Tensor& gradient, const Tensor& input) {
  const auto strides = input.is_non_overlapping_and_dense()
      ? input.strides().vec()
      : at::infer_dense_strides(input.sizes(), input.strides());
  if (gradient.strides() == at::IntArrayRef(strides)) {
    return gradient;
  }
  return at::empty_strided(gradient.sizes(), strides, gradient.options()).copy_(gradient);
}

// Whether a transform of torch.func is at work on `tensor`. PyTorch has no batching rule for the fused operation and no
// second or forward derivative, and what an outer transform will ask for is hidden from an inner one.
bool is_transformed(const Tensor& tensor) {
  static constexpr c10::DispatchKeySet transforms{
      c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper};
  return tensor.defined() && tensor.key_set().has_any(transforms);
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
  const auto bias = attn_mask.value_or(Tensor());
  const bool needs_bias_gradient = bias.defined() && bias.requires_grad() && at::GradMode::is_enabled();
  const bool is_fused = choice == static_cast<int64_t>(at::SDPBackend::flash_attention) && !needs_bias_gradient &&
      !is_transformed(query) && !is_transformed(key) && !is_transformed(value) && !is_transformed(bias);
  return static_cast<int64_t>(is_fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
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
  // As PyTorch's meta function of this operation promises: AOTAutograd saves the seed and the offset for the backward,
  // also of a dropout that does not happen.
  const auto no_draw = [&operation] { return operation.result(at::zeros({}, at::kLong)); };
  return {
      operation.result(output), operation.result(logsumexp.contiguous()), Tensor(), Tensor(), query.sym_size(2),
      key.sym_size(2), no_draw(), no_draw(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_backward(
    const Tensor& grad_out,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& attn_bias,
    std::array<bool, 4> grad_input_mask,
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
  TORCH_CHECK_NOT_IMPLEMENTED(
      !grad_input_mask[3] || !attn_bias.defined(),
      record.name, " was asked for the gradient of an attn_bias of shape ", attn_bias.sizes(),
      "; the fused attention of the neuron device gives gradients of query, key and value only. Call "
      "torch.nn.functional.scaled_dot_product_attention, which takes PyTorch's math path for such a bias.");
  const Operation operation(
      record, {grad_out, query, key, value, attn_bias, out, logsumexp}, {dropout_p, is_causal, scale});
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      host_alias(grad_out), host_alias(query), host_alias(key), host_alias(value), host_alias(out),
      host_alias(logsumexp), dropout_p, is_causal, host_bias(attn_bias), scale);
  return {
      operation.result(laid_out_like(grad_query, query)), operation.result(laid_out_like(grad_key, key)),
      operation.result(laid_out_like(grad_value, value)), Tensor()};
}

} // namespace neuron::kernels
