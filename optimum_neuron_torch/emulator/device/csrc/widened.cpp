// Operations that accelerators have in half precision and the CPU lacks, e.g. the resizing with antialiasing that vision
// models apply to their position embeddings: computed in float32 and rounded, as accelerators do. Everything else about
// them is the boxed fallback's.
#include "widened.h"

#include "fallback.h"
#include "operation.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <vector>

namespace neuron {
namespace {

// `with_bfloat16`: whether that dtype is one of those that the CPU lacks.
class WidenedCall {
 public:
  WidenedCall(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool with_bfloat16)
      : with_bfloat16_(with_bfloat16), op_(op), schema_(op.schema()), stack_(stack), begin_(stack->size() - schema_.arguments().size()) {
    for (size_t i = begin_; i < stack_->size(); i++) {
      const auto& value = (*stack_)[i];
      if (value.isTensor()) {
        tensors_.push_back(value.toTensor());
      } else {
        constants_.push_back(value);
      }
    }
  }

  // The dtype that has no kernel, where there is one.
  std::optional<at::ScalarType> narrow() const {
    for (const auto& tensor : tensors_) {
      if (tensor.defined() && is_narrow(tensor.scalar_type())) {
        return tensor.scalar_type();
      }
    }
    return std::nullopt;
  }

  void run(at::ScalarType narrow) {
    const Operation operation(record_of(op_), tensors_, constants_);
    for (size_t i = begin_; i < stack_->size(); i++) {
      auto& value = (*stack_)[i];
      if (value.isTensor() && value.toTensor().defined()) {
        value = widened(value.toTensor(), schema_.arguments()[i - begin_]);
      }
    }
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    for (size_t i = 0; i < schema_.returns().size(); i++) {
      auto& value = (*stack_)[begin_ + i];
      const auto& host = value.toTensor();
      const auto narrowed = host.scalar_type() == at::kFloat ? host.to(narrow) : host;
      value = i < outputs_.size() ? written(outputs_[i], narrowed) : operation.result(narrowed);
    }
  }

 private:
  bool is_narrow(at::ScalarType dtype) const {
    return dtype == at::kHalf || (with_bfloat16_ && dtype == at::kBFloat16);
  }

  at::Tensor widened(const at::Tensor& tensor, const c10::Argument& argument) {
    if (argument.is_out()) {
      outputs_.push_back(tensor);
      const auto dtype = is_narrow(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
      return at::empty({0}, at::TensorOptions().dtype(dtype));
    }
    const auto host = is_neuron(tensor) ? host_alias(tensor) : tensor;
    return is_narrow(host.scalar_type()) ? host.to(at::kFloat) : host;
  }

  static at::Tensor written(const at::Tensor& output, const at::Tensor& host) {
    if (!output.sizes().equals(host.sizes())) {
      output.resize_(host.sizes());
    }
    host_alias(output).copy_(host);
    return output;
  }

  bool with_bfloat16_;
  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack* stack_;
  size_t begin_;
  std::vector<at::Tensor> tensors_, outputs_;
  std::vector<c10::IValue> constants_;
};

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool with_bfloat16) {
  WidenedCall call(op, stack, with_bfloat16);
  if (const auto narrow = call.narrow()) {
    call.run(*narrow);
  } else {
    host_fallback(op, stack);
  }
}

} // namespace

void widened_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run(op, stack, /*with_bfloat16=*/true);
}

void widened_half_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run(op, stack, /*with_bfloat16=*/false);
}

} // namespace neuron
