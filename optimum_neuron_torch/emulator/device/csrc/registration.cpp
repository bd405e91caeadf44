// Which function answers for which operation of the neuron device. No logic here.
#include "fallback.h"
#include "kernels.h"
#include "widened.h"

#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace neuron {

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", kernels::empty_memory_format);
  m.impl("empty_strided", kernels::empty_strided);
  m.impl("_efficientzerotensor", kernels::efficient_zero_tensor);
  m.impl("resize_", kernels::resize_);
  m.impl("set_.source_Storage", kernels::set_source_storage);
  m.impl("set_.source_Storage_storage_offset", kernels::set_source_storage_offset);
  m.impl("set_.source_Tensor", kernels::set_source_tensor);
  m.impl("set_", kernels::set_);
  m.impl("record_stream", kernels::record_stream);
  m.impl("_has_compatible_shallow_copy_type", kernels::has_compatible_shallow_copy_type);

  m.impl("as_strided", kernels::as_strided);
  m.impl("view", kernels::view);
  m.impl("_reshape_alias", kernels::reshape_alias);
  m.impl("unfold", kernels::unfold);
  m.impl("view_as_real", kernels::view_as_real);
  m.impl("view_as_complex", kernels::view_as_complex);

  m.impl("_copy_from", kernels::copy_from);
  m.impl("_copy_from_and_resize", kernels::copy_from_and_resize);
  m.impl("_local_scalar_dense", kernels::local_scalar_dense);

  m.impl("convolution_overrideable", kernels::convolution);
  m.impl("convolution_backward_overrideable", kernels::convolution_backward);

  m.impl("_fused_sdp_choice", kernels::fused_sdp_choice);
  m.impl("_nested_tensor_from_mask_left_aligned", kernels::nested_tensor_from_mask_left_aligned);
  m.impl("_scaled_dot_product_fused_attention_overrideable", kernels::fused_attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", kernels::fused_attention_backward);

  m.impl("native_dropout", kernels::native_dropout);

  m.impl("_thnn_fused_lstm_cell", kernels::fused_lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", kernels::fused_lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", kernels::fused_gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", kernels::fused_gru_cell_backward);

  m.impl("histc", kernels::histc);
  m.impl("histc.out", kernels::histc_out);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_make_dual", torch::CppFunction::makeFromBoxedFunction<&kernels::make_dual>());
}

// PyTorch composes these on every device but the CPU, where the composition refuses a device it does not know by name, or
// does less than the CPU's.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const auto* name : {"addr_", "conj_physical_", "mode.values"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&host_fallback>());
  }
}

// Of these the CPU has no kernels in half precision.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const auto* name :
       {"_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa.out", "_upsample_bilinear2d_aa_backward",
        "_upsample_bilinear2d_aa_backward.grad_input", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa.out",
        "_upsample_bicubic2d_aa_backward", "_upsample_bicubic2d_aa_backward.grad_input", "_upsample_lanczos2d_aa",
        "_upsample_lanczos2d_aa.out", "_upsample_lanczos2d_aa_backward", "_upsample_lanczos2d_aa_backward.grad_input",
        "avg_pool3d", "avg_pool3d.out", "avg_pool3d_backward", "avg_pool3d_backward.grad_input", "multi_margin_loss",
        "multi_margin_loss.out", "multi_margin_loss_backward", "multi_margin_loss_backward.grad_input",
        "multilabel_margin_loss_forward", "multilabel_margin_loss_forward.output", "multilabel_margin_loss_backward",
        "multilabel_margin_loss_backward.grad_input"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&widened_fallback>());
  }
  for (const auto* name : {"polygamma", "polygamma.out", "round.decimals", "round.decimals_out"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&widened_half_fallback>());
  }
}

// PyTorch would make a shell of these that no operation takes. Which of the two keys answers depends on the arguments.
void refuse_compressed(torch::Library& m) {
  for (const auto* name :
       {"sparse_compressed_tensor.comp_plain_value", "sparse_compressed_tensor.comp_plain_value_size",
        "sparse_csr_tensor.crow_col_value", "sparse_csr_tensor.crow_col_value_size",
        "sparse_csc_tensor.ccol_row_value", "sparse_csc_tensor.ccol_row_value_size",
        "sparse_bsr_tensor.crow_col_value", "sparse_bsr_tensor.crow_col_value_size",
        "sparse_bsc_tensor.ccol_row_value", "sparse_bsc_tensor.ccol_row_value_size",
        "_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe", "_sparse_csc_tensor_unsafe",
        "_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe", "_sparse_compressed_tensor_with_dims"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
  }
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  refuse_compressed(m);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  refuse_compressed(m);
  m.impl("_nested_tensor_from_tensor_list", torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

// The copy reads conjugate and negative bits itself. PyTorch's fallbacks for them would clone the tensor first, which
// copies, which clones: without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace neuron

// scaled_dot_product_attention() asks this stub, not the operator of the same name.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &neuron::kernels::fused_sdp_choice)
}
