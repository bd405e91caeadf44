// What the device counts: operations, eager signatures and copies.
#include "counters.h"

#include <c10/core/ScalarType.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace neuron {
namespace {

struct State {
  std::mutex mutex;
  std::deque<OpRecord> records; // stable addresses
  std::unordered_map<std::string, OpRecord*> by_name;
  ska::flat_hash_map<const c10::FunctionSchema*, OpRecord*> by_schema;
  std::unordered_set<uint64_t> signatures;
  uint64_t eager_calls = 0;
  uint64_t copies = 0;
  std::map<std::pair<CopyDirection, std::vector<int64_t>>, uint64_t> copies_by_shape;
};

State& state() {
  static auto* const instance = new State();
  return *instance;
}

// Where PyTorch takes CPU tensors of any size beside tensors of an accelerator: indices, and lengths that its own
// kernels read on the host.
const std::unordered_set<std::string>& operations_with_host_arguments() {
  static const auto* const names = new std::unordered_set<std::string>{
      "aten::index",           "aten::index_put",  "aten::index_put_",    "aten::_index_put_impl_",
      "aten::_unsafe_index",   "aten::_ctc_loss",  "aten::_unsafe_index_put", "aten::_pack_padded_sequence",
      "aten::_ctc_loss_backward", "aten::_nested_view_from_buffer",
  };
  return *names;
}

bool returns_only_views(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) {
    return false;
  }
  for (const auto& result : schema.returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) {
      return false;
    }
  }
  return true;
}

OpRecord describe(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OpRecord record;
  record.name = schema.name();
  record.takes_host_tensors = operations_with_host_arguments().count(record.name) != 0;
  if (!schema.overload_name().empty()) {
    record.name += "." + schema.overload_name();
  }
  record.is_view = returns_only_views(schema);
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& type = arguments[i].type();
    const bool is_optional = type->kind() == c10::TypeKind::OptionalType;
    const auto kind = is_optional ? type->expectRef<c10::OptionalType>().getElementType()->kind() : type->kind();
    if (kind == c10::TypeKind::GeneratorType) {
      record.generator_argument = static_cast<int>(i);
    }
  }
  return record;
}

// Under the lock.
OpRecord* intern(State& state, OpRecord described) {
  auto& known = state.by_name[described.name];
  if (known == nullptr) {
    state.records.push_back(std::move(described));
    known = &state.records.back();
  }
  return known;
}

std::map<std::string, uint64_t> calls_by_dtype(const OpRecord& record) {
  std::map<std::string, uint64_t> counts;
  for (size_t i = 0; i < record.calls_by_dtype.size(); i++) {
    if (record.calls_by_dtype[i] > 0) {
      const bool has_tensor = i < c10::NumScalarTypes;
      const auto name = has_tensor ? c10::getDtypeNames(static_cast<at::ScalarType>(i)).first : "";
      counts[std::string(name)] = record.calls_by_dtype[i];
    }
  }
  return counts;
}

bool has_name(const OpRecord& record, const c10::FunctionSchema& schema) {
  const std::string_view name = record.name;
  return name.size() >= schema.name().size() && name.compare(0, schema.name().size(), schema.name()) == 0;
}

} // namespace

OpRecord& record_of(const c10::OperatorHandle& op) {
  const auto* schema = &op.schema();
  auto& counts = state();
  {
    const std::lock_guard<std::mutex> lock(counts.mutex);
    const auto found = counts.by_schema.find(schema);
    // A custom operator can be removed and another one take its address.
    if (C10_LIKELY(found != counts.by_schema.end() && has_name(*found->second, *schema))) {
      return *found->second;
    }
  }
  auto described = describe(op);
  const std::lock_guard<std::mutex> lock(counts.mutex);
  auto* record = intern(counts, std::move(described));
  counts.by_schema[schema] = record;
  return *record;
}

OpRecord& record_named(std::string_view name) {
  OpRecord described;
  described.name = name;
  auto& counts = state();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  return *intern(counts, std::move(described));
}

void Signature::add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    add(uint64_t{0});
    return;
  }
  const auto dtype = static_cast<size_t>(tensor.scalar_type());
  if (dtype_ == c10::NumScalarTypes) {
    dtype_ = dtype;
  }
  add(static_cast<uint64_t>(dtype) + 1);
  const auto sizes = tensor.sizes();
  add(static_cast<uint64_t>(sizes.size()));
  for (const auto size : sizes) {
    add(static_cast<uint64_t>(size));
  }
  // A Python number among tensors reaches us as a tensor without dimensions: a constant like any other.
  if (C10_UNLIKELY(sizes.empty() && tensor.unsafeGetTensorImpl()->is_wrapped_number())) {
    uint64_t bits = 0;
    std::memcpy(&bits, tensor.const_data_ptr(), std::min<size_t>(tensor.element_size(), sizeof(bits)));
    add(bits);
  }
}

void Signature::add(const c10::IValue& value) {
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isInt()) {
    add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    add(uint64_t{value.toBool()});
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    add(bits);
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    add(c10::IValue(number.real()));
    add(c10::IValue(number.imag()));
  } else if (value.isString()) {
    add(static_cast<uint64_t>(std::hash<std::string>()(value.toStringRef())));
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    add(static_cast<uint64_t>(elements.size()));
    for (const auto& element : elements) {
      add(element);
    }
  } else {
    // Absent optional arguments, devices and generators do not change the compiled code.
    add(uint64_t{0});
  }
}

void count_call(OpRecord& record, const Signature& signature) {
  auto& counts = state();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  record.calls++;
  record.calls_by_dtype[signature.dtype()]++;
  counts.eager_calls++;
  if (C10_UNLIKELY(counts.signatures.insert(signature.hash()).second)) {
    record.signatures++;
  }
}

bool is_known(const Signature& signature) {
  auto& counts = state();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  return counts.signatures.count(signature.hash()) != 0;
}

void count_copy(CopyDirection direction, c10::IntArrayRef sizes) {
  auto& counts = state();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  counts.copies++;
  counts.copies_by_shape[{direction, sizes.vec()}]++;
}

CounterSnapshot snapshot_counters() {
  auto& counts = state();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  CounterSnapshot snapshot;
  snapshot.eager_signatures = counts.signatures.size();
  snapshot.eager_calls = counts.eager_calls;
  snapshot.copies = counts.copies;
  snapshot.copies_by_shape = counts.copies_by_shape;
  for (const auto& record : counts.records) {
    if (record.calls > 0) {
      snapshot.operations.push_back({record.name, record.calls, record.signatures, calls_by_dtype(record)});
    }
  }
  return snapshot;
}

void clear_counters() {
  auto& counts = state();
  const std::lock_guard<std::mutex> lock(counts.mutex);
  counts.signatures.clear();
  counts.eager_calls = counts.copies = 0;
  counts.copies_by_shape.clear();
  for (auto& record : counts.records) {
    record.calls = record.signatures = 0;
    record.calls_by_dtype.fill(0);
  }
}

} // namespace neuron
