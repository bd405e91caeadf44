// What torch.profiler records of the device: one range for each operation, copy and compiled graph, linked to the call
// that started it. With no profiler running a range costs one load.
#pragma once

#include "cores.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace neuron::profiler {

enum class Activity { kKernel, kCopy };

extern std::atomic<bool> recording;

inline bool is_recording() noexcept {
  return recording.load(std::memory_order_relaxed);
}

// Nanoseconds since the epoch, the clock of Kineto's traces.
int64_t now();

// Keeps the range from `start` until now. `nbytes` is what a copy moves; 0 for kernels.
void record(const std::string& name, Activity activity, c10::DeviceIndex core, int64_t start, int64_t nbytes);

// Records its own lifetime. `name` must outlive it.
class Range {
 public:
  Range(const std::string& name, Activity activity, c10::DeviceIndex core, int64_t nbytes = 0)
      : name_(name), activity_(activity), core_(core), nbytes_(nbytes) {
    if (C10_UNLIKELY(is_recording())) {
      start_ = now();
    }
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() {
    if (C10_UNLIKELY(start_ != 0)) {
      record(name_, activity_, core_, start_, nbytes_);
    }
  }

 private:
  const std::string& name_;
  Activity activity_;
  c10::DeviceIndex core_;
  int64_t nbytes_;
  int64_t start_ = 0;
};

// Makes the device known to torch.profiler. Does nothing with a torch that was built without Kineto.
void register_profiler();

} // namespace neuron::profiler
