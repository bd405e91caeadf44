// Strict mode: turns what is slow, lossy, undocumented or missing on the real device into an error. Off, it costs one
// load per operation.
#pragma once

#include "counters.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

namespace neuron::strict {

enum Kind : uint32_t {
  kFallback = 1 << 0, // operations that the real device runs on the CPU
  kUnknown = 1 << 1, // operations of which nothing is known
  kFloat64 = 1 << 2,
  kInt64 = 1 << 3, // only values that leave 32 bits
  kComplex = 1 << 4,
  kSparse = 1 << 5,
  kForwardAD = 1 << 6,
  kChannelsLast = 1 << 7, // asked for: a permuted view with such strides is nothing special
  kRecompile = 1 << 8, // signatures that are new after mark_warm()
  kMulticore = 1 << 9,
};

// Names and bits, in the order of the documentation.
const std::vector<std::pair<std::string, Kind>>& kinds_by_name();

extern std::atomic<uint32_t> enabled_kinds;
// Makes these the kinds that raise. A kind that was off starts afresh: the first core used is the one that counts.
void enable(uint32_t kinds);

inline bool is_on() {
  return enabled_kinds.load(std::memory_order_relaxed) != 0;
}
inline bool is_on(Kind kind) {
  return (enabled_kinds.load(std::memory_order_relaxed) & kind) != 0;
}

enum class Capability { kNative, kFallback, kUnknown };
// What is known of the real device, by operator with overload, or by its family: "aten::add.*".
void set_capabilities(std::unordered_map<std::string, Capability> capabilities);

void mark_warm(bool is_warm);
bool is_warm();

// All of these raise, or do nothing. Call them only where is_on().
void check_call(const OpRecord& record, at::TensorList tensors, const Signature& signature);
void check_results(const OpRecord& record, at::TensorList results);
void check_cores(std::string_view operation, at::TensorList tensors);
void check_new_tensor(
    std::string_view operation,
    at::ScalarType dtype,
    c10::IntArrayRef sizes,
    c10::Device device,
    std::optional<at::MemoryFormat> memory_format = std::nullopt);
void check_dual(const at::Tensor& primal, const at::Tensor& tangent);
[[noreturn]] void refuse(Kind kind, std::string_view operation, at::TensorList tensors, const std::string& reason);

// " with Float[2, 3], Long[2]" and "Called at script.py:3 in main": for errors outside strict mode, too.
std::string with_tensors(at::TensorList tensors);
std::string called_at();

} // namespace neuron::strict
