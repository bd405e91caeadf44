// Two views of the same memory: a CPU tensor over a neuron tensor's storage, and the other way round, without copies.
#include "alias.h"

#include "allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

namespace neuron {
namespace {

c10::intrusive_ptr<c10::StorageImpl> make_storage(size_t nbytes, c10::DataPtr pointer, c10::Allocator* allocator) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, std::move(pointer), allocator, /*resizable=*/true);
}

// Memory that is not ours, e.g. a buffer that a third party registered as a neuron tensor: kept alive by its storage.
c10::DataPtr keep_alive_pointer(const c10::Storage& storage, c10::Device device) {
  auto* keeper = new c10::Storage(storage);
  return {storage.mutable_data(), keeper, [](void* context) { delete static_cast<c10::Storage*>(context); }, device};
}

c10::Storage make_host_storage(const c10::Storage& storage, Block* block) {
  auto pointer = block != nullptr ? host_pointer(block)
      : storage.data() != nullptr ? keep_alive_pointer(storage, c10::Device(c10::kCPU))
                                  : c10::DataPtr(nullptr, c10::Device(c10::kCPU));
  return c10::Storage(make_storage(storage.nbytes(), std::move(pointer), c10::GetCPUAllocator()));
}

// Keeps `host` as the CPU storage of `block`, unless another thread was faster.
void keep_host_storage(Block* block, const c10::Storage& host) {
  auto owned = host.getWeakStorageImpl().lock();
  c10::StorageImpl* none = nullptr;
  if (block->host_storage.compare_exchange_strong(none, owned.get(), std::memory_order_acq_rel)) {
    (void)owned.release();
  }
}

// FSDP frees the memory of a tensor that it will fill again: to compute with it before then is an error, not a crash.
void check_not_freed(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.storage().data() != nullptr || tensor.numel() == 0, "A ", tensor.scalar_type(), " tensor of shape ",
      tensor.sizes(), " on ", tensor.device(), " has no memory: its storage was resized to ",
      tensor.storage().nbytes(), " bytes. Resize the storage and fill it before it is used.");
}

c10::Storage host_storage(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  Block* block = block_of(storage.data_ptr());
  if (block == nullptr) {
    check_not_freed(tensor);
    return make_host_storage(storage, nullptr);
  }
  if (block->foreign && block->foreign.nbytes() == storage.nbytes()) {
    return block->foreign;
  }
  auto* kept = block->host_storage.load(std::memory_order_acquire);
  if (kept != nullptr && kept->nbytes() == storage.nbytes() && kept->data() == storage.data()) {
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(kept));
  }
  auto made = make_host_storage(storage, block);
  if (kept == nullptr) {
    keep_host_storage(block, made);
  }
  return made;
}

at::Tensor make_tensor(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  at::Tensor tensor(std::move(impl));
  if (C10_UNLIKELY(like.is_conj())) {
    tensor._set_conj(true);
  }
  if (C10_UNLIKELY(like.is_neg())) {
    tensor._set_neg(true);
  }
  return tensor;
}

bool has_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().data() == b.storage().data() && a.storage_offset() == b.storage_offset() &&
      a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
      a.storage().nbytes() == b.storage().nbytes() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Rides on the neuron tensor in the place that TensorImpl has for a backend's own data.
struct KeptHostAlias final : c10::BackendMeta {
  at::Tensor host;

  // Called where PyTorch copies the metadata of a tensor to another one, e.g. detach(): that one makes its own alias.
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>& /*self*/) const override {
    return c10::make_intrusive<KeptHostAlias>();
  }
};

} // namespace

at::Tensor host_alias(const at::Tensor& tensor) {
  return make_tensor(host_storage(tensor), tensor, c10::DispatchKey::CPU);
}

at::Tensor kept_host_alias(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto* kept = static_cast<KeptHostAlias*>(impl->get_backend_meta());
  if (C10_LIKELY(kept != nullptr && kept->host.defined() && has_same_memory(kept->host, tensor))) {
    return kept->host;
  }
  auto host = host_alias(tensor);
  if (kept == nullptr) {
    auto meta = c10::make_intrusive<KeptHostAlias>();
    kept = meta.get();
    impl->set_backend_meta(std::move(meta));
  }
  kept->host = host;
  return host;
}

at::Tensor device_tensor(c10::Storage storage, const at::Tensor& like) {
  return make_tensor(std::move(storage), like, c10::DispatchKey::PrivateUse1);
}

c10::Storage device_storage(const c10::Storage& host, c10::DeviceIndex core) {
  const size_t nbytes = host.nbytes();
  if (nbytes == 0 || host.data() == nullptr) {
    return c10::Storage(make_storage(0, c10::DataPtr(nullptr, core_device(core)), device_allocator()));
  }
  Block* block = block_of(host.data_ptr());
  if (block == nullptr || block->core != core) {
    block = adopt_foreign(core, host);
  }
  auto made = c10::Storage(make_storage(nbytes, device_pointer(block), device_allocator()));
  // Only a storage that came from us is safe to keep: a foreign one owns the block's memory, which would be a cycle.
  if (!block->foreign) {
    keep_host_storage(block, host);
  }
  return made;
}

at::Tensor device_alias(const at::Tensor& host, c10::DeviceIndex core) {
  return device_tensor(device_storage(host.storage(), core), host);
}

void follow_resize(const at::Tensor& device, const at::Tensor& host) {
  const auto& host_memory = host.storage();
  const auto& device_memory = device.storage();
  if (host_memory.data() != device_memory.data()) {
    auto replacement = device_storage(host_memory, device.device().index());
    auto* impl = device_memory.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(replacement.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    impl->set_nbytes(host_memory.nbytes());
  }
  if (!device.sizes().equals(host.sizes()) || !device.strides().equals(host.strides()) ||
      device.storage_offset() != host.storage_offset()) {
    device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }
  // Some kernels leave the conjugation of their result to who reads it, e.g. linalg.lu_solve(out=).
  if (C10_UNLIKELY(device.is_conj() != host.is_conj())) {
    device._set_conj(host.is_conj());
  }
  if (C10_UNLIKELY(device.is_neg() != host.is_neg())) {
    device._set_neg(host.is_neg());
  }
}

} // namespace neuron
