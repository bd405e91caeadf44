// What the device counts: operations, eager signatures and copies.
//
// On Trainium an eager operation is compiled once for each signature: the operation, the shapes and dtypes of its
// tensors, and its other arguments. Dense copies of one dtype between host and device, views and `empty` compile
// nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace neuron {

// One per operator overload, alive for ever.
struct OpRecord {
  std::string name; // "aten::add.Tensor"
  bool is_view = false; // all results are views of arguments: nothing is computed
  bool takes_host_tensors = false; // PyTorch allows CPU tensors of any size among its arguments, e.g. indices
  int generator_argument = -1;
  uint64_t calls = 0;
  uint64_t signatures = 0;
  std::array<uint64_t, c10::NumScalarTypes + 1> calls_by_dtype{}; // of the first tensor argument; last: no tensor
};

OpRecord& record_of(const c10::OperatorHandle& op);
// For kernels that are registered by themselves, under the name that users know the operation by.
OpRecord& record_named(std::string_view name);

class Signature {
 public:
  explicit Signature(const OpRecord& record) {
    add(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&record)));
  }

  void add(uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9E3779B97F4A7C15ull;
    hash_ ^= hash_ >> 32;
  }
  void add(const at::Tensor& tensor);
  void add(const c10::IValue& value);

  uint64_t hash() const {
    return hash_;
  }

  // The dtype of the first tensor, an index of OpRecord::calls_by_dtype.
  size_t dtype() const {
    return dtype_;
  }

 private:
  size_t dtype_ = c10::NumScalarTypes;
  uint64_t hash_ = 0x243F6A8885A308D3ull;
};

// Counts one call of the operation with this signature.
void count_call(OpRecord& record, const Signature& signature);
bool is_known(const Signature& signature);

enum class CopyDirection { kHostToDevice, kDeviceToHost, kDeviceToDevice };
void count_copy(CopyDirection direction, c10::IntArrayRef sizes);

struct OpCount {
  std::string name;
  uint64_t calls;
  uint64_t signatures;
  std::map<std::string, uint64_t> calls_by_dtype; // "float32" -> count; "" for calls without a tensor
};

struct CounterSnapshot {
  uint64_t eager_signatures = 0;
  uint64_t eager_calls = 0;
  uint64_t copies = 0;
  std::vector<OpCount> operations;
  std::map<std::pair<CopyDirection, std::vector<int64_t>>, uint64_t> copies_by_shape;
};

CounterSnapshot snapshot_counters();
// Forgets everything, the known signatures included, as a new process would.
void clear_counters();

} // namespace neuron
