// The memory of the emulated device: a caching allocator over host memory with statistics and a limit.
#include "allocator.h"

#include "profiler.h"

#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace neuron {
namespace {

using c10::CachingAllocator::format_size;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

// Size classes as TorchNeuron's memory guide gives them (SDK 2.33): pools split at 1 MB; requests below 16 MB are
// rounded to a size class of at least 256 bytes, larger ones are taken as they are.
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSmallPoolLimit = kMiB;
constexpr size_t kSmallestBlock = 256;
constexpr size_t kExactFrom = 16 * kMiB;

// Freed memory is kept for the next request of its size, but on a developer's machine not without bound: above this
// share of the limit it goes back to the host at once.
constexpr size_t kCachedShare = 8;

// Four classes per power of two: at most a quarter of a block is wasted.
size_t round_to_size_class(size_t nbytes) {
  if (nbytes <= kSmallestBlock) {
    return kSmallestBlock;
  }
  if (nbytes >= kExactFrom) {
    return nbytes;
  }
  const size_t power = size_t{1} << c10::llvm::Log2_64(nbytes);
  const size_t step = std::max(power / 4, kSmallestBlock / 4);
  return (nbytes + step - 1) / step * step;
}

StatType pool_of(size_t block_size) {
  return block_size < kSmallPoolLimit ? StatType::SMALL_POOL : StatType::LARGE_POOL;
}

void increase(StatArray& stat, StatType pool, size_t amount) {
  stat[static_cast<size_t>(StatType::AGGREGATE)].increase(amount);
  stat[static_cast<size_t>(pool)].increase(amount);
}

void decrease(StatArray& stat, StatType pool, size_t amount) {
  stat[static_cast<size_t>(StatType::AGGREGATE)].decrease(amount);
  stat[static_cast<size_t>(pool)].decrease(amount);
}

size_t current(const StatArray& stat) {
  return static_cast<size_t>(stat[static_cast<size_t>(StatType::AGGREGATE)].current);
}

template <typename Function>
void for_each_statistic(DeviceStats& stats, Function function) {
  for (auto* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array) {
      function(stat);
    }
  }
}

// In front of the data of every block that is ours: where to find the block, given the address.
constexpr size_t kHeaderSize = c10::gAlignment;

Block* block_at(void* data) {
  return *reinterpret_cast<Block**>(static_cast<char*>(data) - kHeaderSize);
}

void* allocate_with_header(Block* block, size_t size) {
  auto* memory = static_cast<char*>(c10::alloc_cpu(kHeaderSize + size));
  *reinterpret_cast<Block**>(memory) = block;
  return memory + kHeaderSize;
}

void free_with_header(void* data) {
  c10::free_cpu(static_cast<char*>(data) - kHeaderSize);
}

class Pool {
 public:
  Block* allocate(c10::DeviceIndex core, size_t nbytes) {
    check_not_in_bad_fork();
    const size_t size = round_to_size_class(nbytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    Block* block = take_cached(core, size);
    if (block == nullptr) {
      block = reserve(core, size, nbytes);
    }
    block->requested = nbytes;
    count_use(block);
    return block;
  }

  Block* adopt(c10::DeviceIndex core, const c10::Storage& host) {
    check_not_in_bad_fork();
    mark_in_use();
    const size_t nbytes = host.nbytes();
    const std::lock_guard<std::mutex> lock(mutex_);
    make_room(core, nbytes, nbytes);
    auto* block = new Block();
    block->data = host.mutable_data();
    block->size = block->requested = nbytes;
    block->core = core;
    block->foreign = host;
    count_reserved(block);
    count_use(block);
    return block;
  }

  void release(Block* block) {
    c10::Storage foreign = std::move(block->foreign); // may free other blocks: not under the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    uncount_use(block);
    if (foreign || cached_bytes_ + block->size > limit_ / kCachedShare) {
      return_to_host(block, /*owned=*/!foreign);
      return;
    }
    cached_bytes_ += block->size;
    cache_[block->core][block->size].push_back(block);
  }

  bool owns(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return owned_.count(data) != 0;
  }

  void empty_cache() {
    const std::lock_guard<std::mutex> lock(mutex_);
    drop_cached_blocks();
  }

  void set_limit(size_t nbytes, std::string reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_ = nbytes;
    limit_reason_ = std::move(reason);
  }

  DeviceStats statistics(c10::DeviceIndex core) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_.at(core);
  }

  void reset_accumulated(c10::DeviceIndex core) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = stats_.at(core);
    for_each_statistic(stats, [](auto& stat) { stat.reset_accumulated(); });
    stats.num_alloc_retries = stats.num_ooms = stats.num_device_alloc = stats.num_device_free = 0;
  }

  void reset_peak(c10::DeviceIndex core) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for_each_statistic(stats_.at(core), [](auto& stat) { stat.reset_peak(); });
  }

  std::pair<size_t, size_t> memory_info() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t used = reserved_bytes_ - cached_bytes_;
    return {used < limit_ ? limit_ - used : 0, limit_};
  }

  // A fork while another thread holds the lock would leave it locked for ever in the child, which still frees tensors.
  void lock_for_fork() {
    mutex_.lock();
  }
  void unlock_after_fork() {
    mutex_.unlock();
  }

 private:
  Block* take_cached(c10::DeviceIndex core, size_t size) {
    auto& blocks = cache_[core];
    const auto found = blocks.find(size);
    if (found == blocks.end() || found->second.empty()) {
      return nullptr;
    }
    Block* block = found->second.back();
    found->second.pop_back();
    cached_bytes_ -= block->size;
    return block;
  }

  // Raises unless `size` more bytes are within the limit, if need be without what is cached.
  void make_room(c10::DeviceIndex core, size_t size, size_t nbytes) {
    if (reserved_bytes_ + size > limit_ && cached_bytes_ > 0) {
      stats_[core].num_alloc_retries++;
      drop_cached_blocks();
    }
    if (reserved_bytes_ + size > limit_) {
      raise_out_of_memory(core, nbytes);
    }
  }

  Block* reserve(c10::DeviceIndex core, size_t size, size_t nbytes) {
    mark_in_use();
    make_room(core, size, nbytes);
    auto* block = new Block();
    try {
      block->data = allocate_with_header(block, size);
    } catch (const c10::Error&) {
      delete block;
      stats_[core].num_ooms++;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "The host has no ", format_size(nbytes), " left for neuron:",
          static_cast<int>(core), ", although the emulator's limit of ", format_size(limit_),
          " is not reached. Close other programs or use smaller inputs.");
    }
    block->size = size;
    block->core = core;
    stats_[core].num_device_alloc++;
    owned_.insert(block->data);
    count_reserved(block);
    return block;
  }

  void drop_cached_blocks() {
    for (auto& by_size : cache_) {
      for (auto& [size, blocks] : by_size) {
        for (Block* block : blocks) {
          cached_bytes_ -= block->size;
          return_to_host(block, /*owned=*/true);
        }
      }
      by_size.clear();
    }
  }

  void return_to_host(Block* block, bool owned) {
    auto& stats = stats_[block->core];
    const auto pool = pool_of(block->size);
    decrease(stats.segment, pool, 1);
    decrease(stats.reserved_bytes, pool, block->size);
    reserved_bytes_ -= block->size;
    if (owned) {
      stats.num_device_free++;
      owned_.erase(block->data);
      free_with_header(block->data);
    }
    delete block;
  }

  void count_reserved(const Block* block) {
    auto& stats = stats_[block->core];
    const auto pool = pool_of(block->size);
    increase(stats.segment, pool, 1);
    increase(stats.reserved_bytes, pool, block->size);
    reserved_bytes_ += block->size;
  }

  // To torch.profiler(profile_memory=True), which looks at the calling thread only.
  void tell_profiler(const Block* block, bool is_freed) {
    const auto& stats = stats_[block->core];
    const auto nbytes = static_cast<int64_t>(block->size);
    c10::reportMemoryUsageToProfiler(
        block->data, is_freed ? -nbytes : nbytes, current(stats.allocated_bytes), current(stats.reserved_bytes),
        core_device(block->core));
  }

  void count_use(const Block* block) {
    auto& stats = stats_[block->core];
    const auto pool = pool_of(block->size);
    increase(stats.allocation, pool, 1);
    increase(stats.active, pool, 1);
    increase(stats.allocated_bytes, pool, block->size);
    increase(stats.active_bytes, pool, block->size);
    increase(stats.requested_bytes, pool, block->requested);
    if (C10_UNLIKELY(profiler::is_recording())) {
      tell_profiler(block, /*is_freed=*/false);
    }
  }

  void uncount_use(const Block* block) {
    auto& stats = stats_[block->core];
    const auto pool = pool_of(block->size);
    decrease(stats.allocation, pool, 1);
    decrease(stats.active, pool, 1);
    decrease(stats.allocated_bytes, pool, block->size);
    decrease(stats.active_bytes, pool, block->size);
    decrease(stats.requested_bytes, pool, block->requested);
    if (C10_UNLIKELY(profiler::is_recording())) {
      tell_profiler(block, /*is_freed=*/true);
    }
  }

  void raise_out_of_memory(c10::DeviceIndex core, size_t nbytes) {
    stats_[core].num_ooms++;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "neuron:", static_cast<int>(core), " is out of memory: ", format_size(nbytes),
        " were asked for; ", format_size(current(stats_[core].allocated_bytes)), " are in use on this core, ",
        format_size(reserved_bytes_ - cached_bytes_), " on all cores together, ", format_size(cached_bytes_),
        " are cached; the limit is ", format_size(limit_), " (", limit_reason_,
        "). Use a smaller model, batch or sequence, or a smaller dtype such as bfloat16, or set NEURON_EMULATOR_HBM, "
        "e.g. NEURON_EMULATOR_HBM=32GiB.");
  }

  std::mutex mutex_;
  size_t limit_ = 24 * 1024 * kMiB;
  std::string limit_reason_ = "HBM of one logical core of trn2";
  size_t reserved_bytes_ = 0; // from the host, in use or cached
  size_t cached_bytes_ = 0;
  std::array<std::map<size_t, std::vector<Block*>>, kMaxCores> cache_;
  std::array<DeviceStats, kMaxCores> stats_;
  std::unordered_set<const void*> owned_; // the data of all our blocks
};

// Never destroyed: tensors held by Python modules outlive static objects.
Pool& pool() {
  static Pool* const instance = [] {
    auto* created = new Pool();
    pthread_atfork(
        [] { pool().lock_for_fork(); }, [] { pool().unlock_after_fork(); }, [] { pool().unlock_after_fork(); });
    return created;
  }();
  return *instance;
}

void drop_reference(Block* block) {
  if (block->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    pool().release(block);
  }
}

void delete_host_pointer(void* context) {
  drop_reference(static_cast<Block*>(context));
}

void delete_raw_host_pointer(void* data) {
  drop_reference(block_at(data));
}

void delete_device_pointer(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block->device_references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    auto* host = block->host_storage.exchange(nullptr, std::memory_order_acq_rel);
    if (host != nullptr) {
      c10::intrusive_ptr<c10::StorageImpl>::reclaim(host);
    }
  }
  drop_reference(block);
}

} // namespace

Block* allocate_block(c10::DeviceIndex core, size_t nbytes) {
  return pool().allocate(core, nbytes);
}

Block* adopt_foreign(c10::DeviceIndex core, const c10::Storage& host) {
  return pool().adopt(core, host);
}

c10::DataPtr device_pointer(Block* block) {
  block->references.fetch_add(1, std::memory_order_relaxed);
  block->device_references.fetch_add(1, std::memory_order_relaxed);
  return {block->data, block, &delete_device_pointer, core_device(block->core)};
}

c10::DataPtr host_pointer(Block* block) {
  block->references.fetch_add(1, std::memory_order_relaxed);
  return {block->data, block, &delete_host_pointer, c10::Device(c10::kCPU)};
}

c10::DataPtr raw_host_pointer(Block* block) {
  block->references.fetch_add(1, std::memory_order_relaxed);
  return {block->data, block->data, &delete_raw_host_pointer, c10::Device(c10::kCPU)};
}

bool free_raw_host_pointer(void* data) {
  if (!pool().owns(data)) {
    return false;
  }
  delete_raw_host_pointer(data);
  return true;
}

Block* block_of(const c10::DataPtr& pointer) {
  const auto deleter = pointer.get_deleter();
  if (deleter == &delete_raw_host_pointer) {
    return block_at(pointer.get_context());
  }
  if (deleter == &delete_device_pointer || deleter == &delete_host_pointer) {
    return static_cast<Block*>(pointer.get_context());
  }
  return nullptr;
}

c10::DataPtr DeviceAllocator::allocate(size_t nbytes) {
  const auto core = current_core();
  if (nbytes == 0) {
    return {nullptr, core_device(core)};
  }
  return device_pointer(allocate_block(core, nbytes));
}

void DeviceAllocator::copy_data(void* destination, const void* source, size_t count) const {
  default_copy_data(destination, source, count);
}

bool DeviceAllocator::initialized() {
  return true;
}

void DeviceAllocator::emptyCache(c10::MempoolId_t /*pool*/) {
  pool().empty_cache();
}

void DeviceAllocator::recordStream(const c10::DataPtr& /*pointer*/, c10::Stream /*stream*/) {
  // Streams run synchronously: memory is never reused too early.
}

DeviceStats DeviceAllocator::getDeviceStats(c10::DeviceIndex core) {
  return pool().statistics(checked_core(core));
}

void DeviceAllocator::resetAccumulatedStats(c10::DeviceIndex core) {
  pool().reset_accumulated(checked_core(core));
}

void DeviceAllocator::resetPeakStats(c10::DeviceIndex core) {
  pool().reset_peak(checked_core(core));
}

std::pair<size_t, size_t> DeviceAllocator::getMemoryInfo(c10::DeviceIndex core) {
  checked_core(core);
  return pool().memory_info();
}

DeviceAllocator* device_allocator() {
  static auto* const instance = new DeviceAllocator();
  return instance;
}

void set_memory_limit(size_t nbytes, std::string reason) {
  pool().set_limit(nbytes, std::move(reason));
}

} // namespace neuron
