// Autocast on the neuron device: PyTorch's own lists of what runs in the lower precision, in float32, and in the widest
// dtype of its arguments.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace neuron {

// PyTorch's lists spell their types without a namespace.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

namespace {

Tensor refuse_binary_cross_entropy(
    const Tensor& /*input*/,
    const Tensor& /*target*/,
    const std::optional<Tensor>& /*weight*/,
    int64_t /*reduction*/) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
      "binary_cross_entropy_with_logits or BCEWithLogitsLoss, or leave autocast around the loss.");
}

} // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FLOAT32_DTYPE_ARGUMENT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define FLOAT32_APPENDED_DTYPE(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FLOAT32_DTYPE_ARGUMENT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(FLOAT32_APPENDED_DTYPE)
  AT_FORALL_PROMOTE(WIDEST)
  m.impl("binary_cross_entropy", refuse_binary_cross_entropy);

#undef LOWER_PRECISION
#undef FLOAT32
#undef FLOAT32_DTYPE_ARGUMENT
#undef FLOAT32_APPENDED_DTYPE
#undef WIDEST
}

} // namespace neuron
