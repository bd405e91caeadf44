// Strict mode: turns what is slow, lossy, undocumented or missing on the real device into an error.
#include "strict.h"

#include "alias.h"

#include <ATen/ops/aminmax.h>
#include <torch/csrc/utils/pybind.h>

#include <limits>
#include <mutex>
#include <sstream>

namespace neuron::strict {

std::atomic<uint32_t> enabled_kinds{0};

namespace {

std::atomic<bool> warm{false};
std::atomic<int> first_core{-1};

std::mutex capabilities_mutex;
std::unordered_map<std::string, Capability> capabilities;

// As CapabilityTable.row_of() in capabilities.py: the overload, its family, the family of the form that is not in place.
Capability capability_of(const std::string& name) {
  const std::lock_guard<std::mutex> lock(capabilities_mutex);
  auto base = name.substr(0, name.find('.'));
  auto found = capabilities.find(name);
  if (found == capabilities.end()) {
    found = capabilities.find(base + ".*");
  }
  if (found == capabilities.end() && base.back() == '_') {
    base.pop_back();
    found = capabilities.find(base + ".*");
  }
  return found == capabilities.end() ? Capability::kUnknown : found->second;
}

std::string name_of(Kind kind) {
  for (const auto& [name, bit] : kinds_by_name()) {
    if (bit == kind) {
      return name;
    }
  }
  return "?";
}

void check_dtype(std::string_view operation, at::TensorList tensors, at::ScalarType dtype) {
  if (is_on(kFloat64) && dtype == at::kDouble) {
    refuse(kFloat64, operation, tensors, "Trainium has no float64: it computes in float32. Use float32");
  }
  if (is_on(kComplex) && c10::isComplexType(dtype)) {
    refuse(
        kComplex, operation, tensors,
        "complex dtypes are not native to Trainium. Keep real and imaginary parts apart");
  }
}

void check_core(std::string_view operation, at::TensorList tensors, c10::Device device) {
  if (!is_on(kMulticore) || device.type() != kDeviceType) {
    return;
  }
  int expected = -1;
  const int core = device.index();
  if (!first_core.compare_exchange_strong(expected, core) && expected != core) {
    refuse(
        kMulticore, operation, tensors,
        "this process already works on neuron:" + std::to_string(expected) + " and now on neuron:" +
            std::to_string(core) + "; a process drives one logical core. Start one process per core");
  }
}

[[noreturn]] void refuse_forward_gradient(std::string_view operation, at::TensorList tensors) {
  refuse(
      kForwardAD, operation, tensors,
      "no public source says that forward-mode differentiation works on the device. Use reverse mode");
}

void check_memory_format(std::string_view operation, std::optional<at::MemoryFormat> format) {
  if (is_on(kChannelsLast) &&
      (format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d)) {
    refuse(kChannelsLast, operation, {}, "Trainium keeps tensors contiguous. Leave out channels_last");
  }
}

bool leaves_32_bits(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kLong || tensor.numel() == 0) {
    return false;
  }
  const auto host = is_neuron(tensor) ? host_alias(tensor) : tensor;
  const auto [smallest, largest] = at::aminmax(host);
  return smallest.item<int64_t>() < std::numeric_limits<int32_t>::min() ||
      largest.item<int64_t>() > std::numeric_limits<int32_t>::max();
}

void check_capability(const OpRecord& record, at::TensorList tensors) {
  if (!is_on(kFallback) && !is_on(kUnknown)) {
    return;
  }
  const auto capability = capability_of(record.name);
  if (is_on(kFallback) && capability == Capability::kFallback) {
    refuse(kFallback, record.name, tensors, "the device runs it on the CPU, with a copy there and back");
  }
  if (is_on(kUnknown) && capability == Capability::kUnknown) {
    const bool is_of_torch = record.name.rfind("aten::", 0) == 0;
    refuse(
        kUnknown, record.name, tensors,
        is_of_torch ? "no public source says that a release runs it natively, and the beta of April 2026 had no kernel "
                      "for it: it ran on the CPU there"
                    : "no public source says whether the device runs it natively");
  }
}

} // namespace

const std::vector<std::pair<std::string, Kind>>& kinds_by_name() {
  static const auto* const kinds = new std::vector<std::pair<std::string, Kind>>{
      {"fallback", kFallback},   {"unknown", kUnknown},         {"float64", kFloat64},
      {"int64", kInt64},         {"complex", kComplex},         {"sparse", kSparse},
      {"forward_ad", kForwardAD}, {"channels_last", kChannelsLast}, {"recompile", kRecompile},
      {"multicore", kMulticore},
  };
  return *kinds;
}

void set_capabilities(std::unordered_map<std::string, Capability> known) {
  const std::lock_guard<std::mutex> lock(capabilities_mutex);
  capabilities = std::move(known);
}

void enable(uint32_t kinds) {
  const auto before = enabled_kinds.exchange(kinds);
  if ((kinds & ~before & kMulticore) != 0) {
    first_core = -1;
  }
}

void mark_warm(bool is_warm) {
  warm = is_warm;
}

bool is_warm() {
  return warm;
}

void check_call(const OpRecord& record, at::TensorList tensors, const Signature& signature) {
  for (const auto& tensor : tensors) {
    if (is_neuron(tensor)) {
      check_dtype(record.name, tensors, tensor.scalar_type());
      check_core(record.name, tensors, tensor.device());
      if (is_on(kForwardAD) && tensor._fw_grad(/*level=*/0).defined()) {
        refuse_forward_gradient(record.name, tensors);
      }
    }
  }
  check_capability(record, tensors);
  if (is_on(kRecompile) && is_warm() && !is_known(signature)) {
    refuse(kRecompile, record.name, tensors, "after warm-up this is a new signature, which the device would compile");
  }
}

void check_results(const OpRecord& record, at::TensorList results) {
  for (const auto& result : results) {
    if (!result.defined()) {
      continue;
    }
    check_dtype(record.name, results, result.scalar_type());
    if (is_on(kInt64) && leaves_32_bits(result)) {
      refuse(kInt64, record.name, results, "values of an int64 tensor leave 32 bits; Trainium computes int64 in int32");
    }
  }
}

void check_cores(std::string_view operation, at::TensorList tensors) {
  for (const auto& tensor : tensors) {
    check_core(operation, tensors, tensor.device());
  }
}

void check_new_tensor(
    std::string_view operation,
    at::ScalarType dtype,
    c10::IntArrayRef sizes,
    c10::Device device,
    std::optional<at::MemoryFormat> memory_format) {
  if (enabled_kinds.load(std::memory_order_relaxed) & (kFloat64 | kComplex | kMulticore | kChannelsLast)) {
    std::ostringstream name;
    name << operation << " of " << dtype << sizes;
    check_dtype(name.str(), {}, dtype);
    check_core(name.str(), {}, device);
    check_memory_format(name.str(), memory_format);
  }
}

// Before any operation sees the tangent: torch.func's levels hide it from them.
void check_dual(const at::Tensor& primal, const at::Tensor& tangent) {
  if (is_on(kForwardAD)) {
    refuse_forward_gradient("aten::_make_dual", {primal, tangent});
  }
}

std::string with_tensors(at::TensorList tensors) {
  std::ostringstream text;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) {
      text << (text.tellp() > 0 ? ", " : " with ") << tensor.scalar_type() << tensor.sizes();
    }
  }
  return text.str();
}

std::string called_at() {
  const pybind11::gil_scoped_acquire gil;
  const auto module = pybind11::module_::import("optimum_neuron_torch.emulator.device.strict_mode");
  return "Called at " + module.attr("user_location")().cast<std::string>();
}

void refuse(Kind kind, std::string_view operation, at::TensorList tensors, const std::string& reason) {
  const auto name = name_of(kind);
  TORCH_CHECK(
      false, "strict mode (", name, "): ", operation, with_tensors(tensors), ": ", reason, ". ", called_at(),
      ". To allow it, leave '", name, "' out of the strict kinds.");
  std::abort();
}

} // namespace neuron::strict
