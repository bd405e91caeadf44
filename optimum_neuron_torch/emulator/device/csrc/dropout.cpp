// The dropout operation that takes no generator. PyTorch's CPU kernel for it draws from the CPU's own default one.
#include "kernels.h"

#include "generator.h"
#include "operation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>

namespace neuron::kernels {

// The CPU's numbers: its kernel draws one mask in the memory order of the input, and keeps with probability 1 - p.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  static auto& record = record_named("aten::native_dropout");
  const bool drops = train.value_or(true);
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const Operation operation(record, input, {p, drops});
  const auto host = host_alias(input);
  if (!drops || input.numel() == 0) {
    return {operation.result(host.clone()), operation.result(at::ones_like(host, at::kBool))};
  }
  const double kept = 1 - p;
  auto mask = at::empty_like(host, at::kBool);
  mask.bernoulli_(kept, host_generator(default_generator(operation.core())));
  auto output = host.mul(mask).mul_(kept == 0 ? 0. : 1. / kept);
  return {operation.result(output), operation.result(mask)};
}

} // namespace neuron::kernels
