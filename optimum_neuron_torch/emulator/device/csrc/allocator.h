// The memory of the emulated device: a caching allocator over host memory with statistics and a limit.
//
// A Block is one piece of host memory that stands for HBM. Storages on both sides can point to it: the neuron storage
// that PyTorch sees, and the CPU storage through which the CPU's kernels work on the same bytes. It goes back to the
// cache when the last of them is gone.
#pragma once

#include "cores.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace neuron {

struct Block {
  void* data = nullptr;
  size_t size = 0; // of the memory behind it, rounded up
  size_t requested = 0;
  c10::DeviceIndex core = 0;
  std::atomic<uint32_t> references{0}; // data pointers of either side
  std::atomic<uint32_t> device_references{0}; // of these, the ones on the neuron side
  // The CPU storage over this memory, made at its first use. Owned, and dropped with the last device reference: it is
  // itself a reference to the block.
  std::atomic<c10::StorageImpl*> host_storage{nullptr};
  // Set where the memory belongs to a CPU storage that existed before: counted, but never cached.
  c10::Storage foreign;
};

// New memory on `core`, without references yet: pass it to one of the two functions below.
Block* allocate_block(c10::DeviceIndex core, size_t nbytes);
// Wraps memory that `host` owns, without references yet.
Block* adopt_foreign(c10::DeviceIndex core, const c10::Storage& host);

c10::DataPtr device_pointer(Block* block);
c10::DataPtr host_pointer(Block* block);
// As host_pointer, for new memory whose context must be its address, as PyTorch's raw_allocate() wants it.
c10::DataPtr raw_host_pointer(Block* block);
// Frees what raw_host_pointer() returned; false where `data` is not such memory.
bool free_raw_host_pointer(void* data);
// The block behind a data pointer of either side, or null.
Block* block_of(const c10::DataPtr& pointer);

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* destination, const void* source, size_t count) const override;

  bool initialized() override;
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex core) override;
  void resetAccumulatedStats(c10::DeviceIndex core) override;
  void resetPeakStats(c10::DeviceIndex core) override;
  // (free, total) bytes. The total is the limit, which all cores share.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex core) override;
};

DeviceAllocator* device_allocator();

// All cores together may hold `nbytes`; `reason` completes "the limit is 24.00 GiB (...)" in the error message.
void set_memory_limit(size_t nbytes, std::string reason);

} // namespace neuron
