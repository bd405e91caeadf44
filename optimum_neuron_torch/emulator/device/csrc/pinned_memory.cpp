// Page-locked host memory, as far as an emulator has it: ordinary host memory that is known to be "pinned".
#include "pinned_memory.h"

#include "cores.h"

#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

namespace neuron {
namespace {

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) {
      return {nullptr, c10::Device(c10::kCPU)};
    }
    void* data = c10::alloc_cpu(nbytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    sizes_.emplace(static_cast<const char*>(data), nbytes);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(nbytes);
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(nbytes);
    return {data, data, &PinnedAllocator::free, c10::Device(c10::kCPU)};
  }

  bool contains(const void* pointer) {
    const auto* address = static_cast<const char*>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = sizes_.upper_bound(address);
    if (after == sizes_.begin()) {
      return false;
    }
    const auto& [start, nbytes] = *std::prev(after);
    return address < start + nbytes;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &PinnedAllocator::free;
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    default_copy_data(destination, source, count);
  }

  bool record_event(void* /*pointer*/, void* /*context*/, c10::Stream /*stream*/) override {
    return true; // streams run synchronously: nothing is ever pending
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void reset_accumulated_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for_each_statistic([](auto& stat) { stat.reset_accumulated(); });
  }

  void reset_peak_stats() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for_each_statistic([](auto& stat) { stat.reset_peak(); });
  }

 private:
  static void free(void* data);

  template <typename Function>
  void for_each_statistic(Function function) {
    for (auto* stat : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes}) {
      function(*stat);
    }
  }

  std::mutex mutex_;
  std::map<const char*, size_t> sizes_;
  at::HostStats stats_;
};

PinnedAllocator& instance() {
  static auto* const allocator = new PinnedAllocator();
  return *allocator;
}

void PinnedAllocator::free(void* data) {
  auto& self = instance();
  {
    const std::lock_guard<std::mutex> lock(self.mutex_);
    const auto found = self.sizes_.find(static_cast<const char*>(data));
    const size_t nbytes = found->second;
    self.sizes_.erase(found);
    self.stats_.active_requests.decrease(1);
    self.stats_.active_bytes.decrease(nbytes);
    self.stats_.allocations.decrease(1);
    self.stats_.allocated_bytes.decrease(nbytes);
  }
  c10::free_cpu(data);
}

} // namespace

at::HostAllocator* pinned_allocator() {
  return &instance();
}

bool is_pinned(const void* pointer) {
  return instance().contains(pointer);
}

} // namespace neuron
