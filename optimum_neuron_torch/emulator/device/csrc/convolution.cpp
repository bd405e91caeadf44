// Convolutions. PyTorch gives backends outside its tree one operation for all of them, "overrideable".
#include "kernels.h"

#include "operation.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

namespace neuron::kernels {

Tensor convolution(
    const Tensor& input,
    const Tensor& weight,
    const std::optional<Tensor>& bias,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups) {
  static auto& record = record_named("aten::convolution");
  const auto bias_or_none = bias.value_or(Tensor());
  const Operation operation(
      record, {input, weight, bias_or_none}, {stride, padding, dilation, transposed, output_padding, groups});
  std::optional<Tensor> host_bias;
  if (bias_or_none.defined()) {
    host_bias = host_alias(bias_or_none);
  }
  return operation.result(at::convolution(
      host_alias(input), host_alias(weight), host_bias, stride, padding, dilation, transposed, output_padding, groups));
}

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
    std::array<bool, 3> output_mask) {
  static auto& record = record_named("aten::convolution_backward");
  const Operation operation(
      record, {grad_output, input, weight},
      {stride, padding, dilation, transposed, output_padding, groups, output_mask[0], output_mask[1], output_mask[2]});
  const int64_t output_channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
      host_alias(grad_output), host_alias(input), host_alias(weight), at::OptionalIntArrayRef({output_channels}),
      stride, padding, dilation, transposed, output_padding, groups, output_mask);
  return {operation.result(grad_input), operation.result(grad_weight), operation.result(grad_bias)};
}

} // namespace neuron::kernels
