// The cells of LSTM and GRU. PyTorch gives accelerators one fused operation for each where the CPU composes a cell of
// others; here they are computed with the CPU's element-wise kernels, in its order.
#include "kernels.h"

#include "operation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

namespace neuron::kernels {
namespace {

// Legend: N batch, H hidden size.

Tensor optional_alias(const std::optional<Tensor>& tensor) {
  return tensor && tensor->defined() ? host_alias(*tensor) : Tensor();
}

Tensor with_bias(const Tensor& gates, const Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}

// Derivatives by what their value was.
Tensor sigmoid_gradient(const Tensor& value) {
  return (1 - value).mul_(value);
}
Tensor tanh_gradient(const Tensor& value) {
  return 1 - value * value;
}

Tensor bias_gradient(const Tensor& grad_gates, bool has_bias) {
  return has_bias ? grad_gates.sum(0) : Tensor();
}

} // namespace

// input_gates, hidden_gates (N, 4 H); cx (N, H). The workspace holds the four activated gates.
std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  static auto& record = record_named("aten::_thnn_fused_lstm_cell");
  const Operation operation(
      record, {input_gates, hidden_gates, cx, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor())}, {});
  const auto gates = with_bias(host_alias(hidden_gates), optional_alias(hidden_bias)) +
      with_bias(host_alias(input_gates), optional_alias(input_bias));
  const auto parts = gates.chunk(4, 1);
  const Tensor input = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
             output = parts[3].sigmoid();
  const auto cy = (forget * host_alias(cx)).add_(input * cell);
  return {
      operation.result(output * cy.tanh()), operation.result(cy),
      operation.result(at::cat({input, forget, cell, output}, 1))};
}

std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell_backward(
    const std::optional<Tensor>& grad_hy,
    const std::optional<Tensor>& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias) {
  static auto& record = record_named("aten::_thnn_fused_lstm_cell_backward_impl");
  const auto by_hy = grad_hy.value_or(Tensor()), by_cy = grad_cy.value_or(Tensor());
  if (!by_hy.defined() && !by_cy.defined()) {
    return {};
  }
  const Operation operation(record, {by_hy, by_cy, cx, cy, workspace}, {has_bias});
  const auto gates = host_alias(workspace).chunk(4, 1);
  const auto &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
  const auto activated = host_alias(cy).tanh();
  auto grad_cell_state = by_cy.defined() ? host_alias(by_cy) : at::zeros_like(activated);
  auto grad_output = at::zeros_like(activated);
  if (by_hy.defined()) {
    const auto grad = host_alias(by_hy);
    grad_output = grad * activated * sigmoid_gradient(output);
    grad_cell_state = grad * output * tanh_gradient(activated) + grad_cell_state;
  }
  const auto grad_gates = at::cat(
      {grad_cell_state * cell * sigmoid_gradient(input),
       grad_cell_state * host_alias(cx) * sigmoid_gradient(forget),
       grad_cell_state * input * tanh_gradient(cell),
       grad_output},
      1);
  return {
      operation.result(grad_gates), operation.result(grad_cell_state * forget),
      operation.result(bias_gradient(grad_gates, has_bias))};
}

// input_gates, hidden_gates (N, 3 H); hx (N, H). The workspace holds the activated gates, hx, and the hidden part of
// the new gate.
std::tuple<Tensor, Tensor> fused_gru_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& hx,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  static auto& record = record_named("aten::_thnn_fused_gru_cell");
  const Operation operation(
      record, {input_gates, hidden_gates, hx, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor())}, {});
  const auto inputs = with_bias(host_alias(input_gates), optional_alias(input_bias)).chunk(3, 1);
  const auto hidden = with_bias(host_alias(hidden_gates), optional_alias(hidden_bias)).chunk(3, 1);
  const auto state = host_alias(hx);
  const auto reset = (hidden[0] + inputs[0]).sigmoid_();
  const auto update = (hidden[1] + inputs[1]).sigmoid_();
  const auto candidate = (inputs[2] + hidden[2] * reset).tanh_();
  const auto hy = (state - candidate).mul_(update).add_(candidate);
  return {operation.result(hy), operation.result(at::cat({reset, update, candidate, state, hidden[2]}, 1))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_gru_cell_backward(
    const Tensor& grad_hy,
    const Tensor& workspace,
    bool has_bias) {
  static auto& record = record_named("aten::_thnn_fused_gru_cell_backward");
  const Operation operation(record, {grad_hy, workspace}, {has_bias});
  const auto kept = host_alias(workspace).chunk(5, 1);
  const auto &reset = kept[0], &update = kept[1], &candidate = kept[2], &state = kept[3], &hidden_candidate = kept[4];
  const auto grad = host_alias(grad_hy);
  const auto grad_update = grad * (state - candidate) * sigmoid_gradient(update);
  const auto grad_candidate = grad * (1 - update) * tanh_gradient(candidate);
  const auto grad_reset = grad_candidate * hidden_candidate * sigmoid_gradient(reset);
  const auto grad_input = at::cat({grad_reset, grad_update, grad_candidate}, 1);
  const auto grad_hidden = at::cat({grad_reset, grad_update, grad_candidate * reset}, 1);
  return {
      operation.result(grad_input), operation.result(grad_hidden), operation.result(grad * update),
      operation.result(bias_gradient(grad_input, has_bias)), operation.result(bias_gradient(grad_hidden, has_bias))};
}

} // namespace neuron::kernels
