// The operations that have a kernel of their own. registration.cpp maps names to these functions; everything else goes
// to the boxed fallback.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/MemoryFormat.h>

#include <array>
#include <optional>
#include <tuple>

namespace neuron::kernels {

using at::IntArrayRef;
using at::Tensor;

// -- memory (memory.cpp) ----------------------------------------------------------------------------------------------
Tensor empty_memory_format(
    IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format);
Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory);
Tensor efficient_zero_tensor(
    IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory);
const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> memory_format);
Tensor& set_source_storage(Tensor& self, at::Storage source);
Tensor& set_source_storage_offset(
    Tensor& self,
    at::Storage source,
    int64_t storage_offset,
    IntArrayRef size,
    IntArrayRef stride);
Tensor& set_source_tensor(Tensor& self, const Tensor& source);
Tensor& set_(Tensor& self);
void record_stream(Tensor& self, at::Stream stream);
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from);

// -- views (views.cpp) ------------------------------------------------------------------------------------------------
Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> storage_offset);
Tensor view(const Tensor& self, IntArrayRef size);
Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride);
Tensor unfold(const Tensor& self, int64_t dimension, int64_t size, int64_t step);
Tensor view_as_real(const Tensor& self);
Tensor view_as_complex(const Tensor& self);
void make_dual(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// -- copies (copy.cpp) ------------------------------------------------------------------------------------------------
Tensor copy_from(const Tensor& self, const Tensor& destination, bool non_blocking);
Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination);
at::Scalar local_scalar_dense(const Tensor& self);

// -- convolution (convolution.cpp) ------------------------------------------------------------------------------------
Tensor convolution(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups);
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad_output,
    const Tensor& input,
    const Tensor& weight,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> output_mask);

// -- attention (attention.cpp) ----------------------------------------------------------------------------------------
bool nested_tensor_from_mask_left_aligned(const Tensor& padded, const Tensor& mask);
int64_t fused_sdp_choice(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa);
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> fused_attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const std::optional<Tensor>& attn_bias,
    double dropout_p,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale);
std::tuple<Tensor, Tensor, Tensor, Tensor> fused_attention_backward(
    const Tensor& grad_out,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& attn_bias,
    std::array<bool, 4> grad_input_mask,
    const Tensor& out,
    const Tensor& logsumexp,
    const Tensor& cum_seq_q,
    const Tensor& cum_seq_k,
    c10::SymInt max_q,
    c10::SymInt max_k,
    double dropout_p,
    bool is_causal,
    const Tensor& philox_seed,
    const Tensor& philox_offset,
    std::optional<double> scale);

// -- dropout (dropout.cpp) --------------------------------------------------------------------------------------------
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train);

// -- cells of recurrent networks (recurrent.cpp) ----------------------------------------------------------------------
std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias);
std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell_backward(
    const std::optional<Tensor>& grad_hy,
    const std::optional<Tensor>& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias);
std::tuple<Tensor, Tensor> fused_gru_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& hx,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_gru_cell_backward(
    const Tensor& grad_hy,
    const Tensor& workspace,
    bool has_bias);

// -- histogram (histogram.cpp) ----------------------------------------------------------------------------------------
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max);
Tensor& histc_out(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max, Tensor& result);

} // namespace neuron::kernels
