// The Python module `_C`: what the Python half of the emulated device needs from C++.
#include "alias.h"
#include "allocator.h"
#include "cores.h"
#include "counters.h"
#include "fallback.h"
#include "generator.h"
#include "hooks.h"
#include "host_allocations.h"
#include "profiler.h"
#include "strict.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace neuron {
namespace {

at::Tensor host_alias_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(
      is_neuron(tensor), "host_alias() takes a tensor of the neuron device, not of ", tensor.device(), ".");
  return kept_host_alias(tensor);
}

at::Tensor device_alias_of(const at::Tensor& tensor, int64_t core) {
  TORCH_CHECK_TYPE(tensor.is_cpu(), "device_alias() takes a CPU tensor, not one of ", tensor.device(), ".");
  return device_alias(tensor, checked_core(core));
}

// Applies `function` to the tensors of a list that `selects`, and passes everything else through. Written with the C
// API: a compiled graph calls it with hundreds of weights.
template <typename Selects, typename Function>
py::object map_tensors(py::handle items, Selects selects, Function function) {
  const auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(items.ptr(), "expected a list of tensors"));
  if (!sequence) {
    throw py::error_already_set();
  }
  const auto size = PySequence_Fast_GET_SIZE(sequence.ptr());
  auto result = py::reinterpret_steal<py::object>(PyList_New(size));
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject* item = PySequence_Fast_GET_ITEM(sequence.ptr(), i);
    PyObject* mapped = nullptr;
    if (THPVariable_Check(item) && selects(THPVariable_Unpack(item))) {
      mapped = THPVariable_Wrap(function(THPVariable_Unpack(item)));
    } else {
      mapped = Py_NewRef(item);
    }
    if (mapped == nullptr) {
      throw py::error_already_set();
    }
    PyList_SET_ITEM(result.ptr(), i, mapped);
  }
  return result;
}

py::object host_aliases_of(py::handle items) {
  return map_tensors(items, is_neuron, kept_host_alias);
}

py::object device_aliases_of(py::handle items, int64_t index) {
  const auto core = checked_core(index);
  return map_tensors(
      items, [](const at::Tensor& tensor) { return tensor.defined() && tensor.is_cpu(); },
      [core](const at::Tensor& tensor) { return device_alias(tensor, core); });
}

const char* name_of(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kHostToDevice:
      return "host_to_device";
    case CopyDirection::kDeviceToHost:
      return "device_to_host";
    case CopyDirection::kDeviceToDevice:
      return "device_to_device";
  }
  return "?";
}

py::dict counters_as_dict() {
  const auto counters = snapshot_counters();
  py::dict operations;
  py::dict calls_by_dtype;
  for (const auto& op : counters.operations) {
    operations[py::str(op.name)] = py::make_tuple(op.calls, op.signatures);
    calls_by_dtype[py::str(op.name)] = py::cast(op.calls_by_dtype);
  }
  py::dict copies_by_shape;
  for (const auto& [key, count] : counters.copies_by_shape) {
    copies_by_shape[py::make_tuple(name_of(key.first), py::tuple(py::cast(key.second)))] = count;
  }
  py::dict result;
  result["eager_signatures"] = counters.eager_signatures;
  result["eager_calls"] = counters.eager_calls;
  result["copies"] = counters.copies;
  result["operations"] = operations;
  result["calls_by_dtype"] = calls_by_dtype;
  result["copies_by_shape"] = copies_by_shape;
  return result;
}

uint32_t bits_of(const std::vector<std::string>& kinds) {
  uint32_t bits = 0;
  for (const auto& [name, bit] : strict::kinds_by_name()) {
    if (std::find(kinds.begin(), kinds.end(), name) != kinds.end()) {
      bits |= bit;
    }
  }
  return bits;
}

std::vector<std::string> known_strict_kinds() {
  std::vector<std::string> names;
  for (const auto& [name, bit] : strict::kinds_by_name()) {
    names.push_back(name);
  }
  return names;
}

std::vector<std::string> enabled_strict_kinds() {
  std::vector<std::string> names;
  for (const auto& [name, bit] : strict::kinds_by_name()) {
    if (strict::is_on(bit)) {
      names.push_back(name);
    }
  }
  return names;
}

void set_capabilities(const std::unordered_map<std::string, std::string>& states) {
  std::unordered_map<std::string, strict::Capability> capabilities;
  for (const auto& [name, state] : states) {
    capabilities[name] = state == "native" ? strict::Capability::kNative
        : state == "cpu"                   ? strict::Capability::kFallback
                                           : strict::Capability::kUnknown;
  }
  strict::set_capabilities(std::move(capabilities));
}

py::object default_generator_of(int64_t core) {
  const auto& generator = default_generator(checked_core(core));
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(generator));
}

void initialize() {
  torch::utils::register_fork_handler_for_device_init(kDeviceType);
  install_host_allocator();
  register_composed_operations();
  register_refusals();
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_hooks();
  profiler::register_profiler();

  m.def("initialize", &initialize);
  m.def("is_in_bad_fork", &is_in_bad_fork);
  m.def("check_not_in_bad_fork", &check_not_in_bad_fork);

  m.def("set_core_count", [](int count) { set_core_count(static_cast<c10::DeviceIndex>(count)); });
  m.def("core_count", [] { return static_cast<int>(core_count()); });
  m.def("current_core", [] { return static_cast<int>(current_core()); });
  m.def("checked_core", [](int64_t core) { return static_cast<int>(checked_core(core)); });
  m.def("exchange_core", [](int64_t core) { return static_cast<int>(exchange_current_core(checked_core(core))); });
  m.def("default_generator", &default_generator_of);

  m.def("set_memory_limit", &set_memory_limit);

  m.def("host_alias", &host_alias_of);
  m.def("device_alias", &device_alias_of);
  m.def("host_aliases", &host_aliases_of);
  m.def("device_aliases", &device_aliases_of);
  m.def("exchange_allocating_core", [](int core) {
    return static_cast<int>(exchange_allocating_core(static_cast<c10::DeviceIndex>(core)));
  });

  m.def("counters", &counters_as_dict);
  m.def("clear_counters", &clear_counters);

  m.def("is_profiling", &profiler::is_recording);
  m.def("profiler_clock", &profiler::now);
  m.def("record_graph", [](const std::string& name, int core, int64_t start) {
    profiler::record(name, profiler::Activity::kKernel, static_cast<c10::DeviceIndex>(core), start, /*nbytes=*/0);
  });

  m.def("known_strict_kinds", &known_strict_kinds);
  m.def("strict_kinds", &enabled_strict_kinds);
  m.def("set_strict_kinds", [](const std::vector<std::string>& kinds) { strict::enable(bits_of(kinds)); });
  m.def("set_capabilities", &set_capabilities);
  m.def("mark_warm", &strict::mark_warm);
  m.def("is_warm", &strict::is_warm);
}

} // namespace neuron
