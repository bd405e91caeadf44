// The device's half of torch.profiler (ProfilerActivity.PrivateUse1): a child profiler of Kineto, and PyTorch's older
// interface of markers.
#include "profiler.h"

#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#ifdef USE_KINETO
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#endif

namespace neuron::profiler {

std::atomic<bool> recording{false};

int64_t now() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

namespace {

struct Event {
  std::string name;
  Activity activity;
  c10::DeviceIndex core;
  int64_t start;
  int64_t end;
  int64_t nbytes;
  uint64_t correlation; // of the CPU operation that started it; 0 for none
};

std::mutex events_mutex;
std::vector<Event> events;

// The CPU operations that this thread is in, innermost last, as PyTorch numbers them.
thread_local std::vector<uint64_t> open_operations;

#ifdef USE_KINETO

constexpr int64_t kRowsBelowCpu = libkineto::kExceedMaxPid;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    const std::lock_guard<std::mutex> lock(events_mutex);
    events.clear();
    recording = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    const std::lock_guard<std::mutex> lock(events_mutex);
    recording = false;
    recorded_ = std::exchange(events, {});
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override {
    return {};
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(
      libkineto::ActivityLogger& logger,
      libkineto::getLinkedActivityCallback linked_activity,
      int64_t start,
      int64_t end) override {
    buffer_->span = libkineto::TraceSpan(start, end, "neuron");
    for (const auto& event : recorded_) {
      buffer_->emplace_activity(buffer_->span, type_of(event), event.name);
      auto& activity = *buffer_->activities.back();
      describe(activity, event);
      activity.linked = linked_activity(activity.id);
      activity.log(logger);
      cores_.insert(event.core);
    }
    for (const auto core : cores_) {
      logger.handleDeviceInfo(device_info(core), start);
    }
    recorded_.clear();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return nullptr; // one of each core, given in processTrace()
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    for (const auto core : cores_) {
      rows.push_back({/*id=*/0, /*sortIndex=*/0, core, "operations"});
    }
    return rows;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    open_operations.push_back(id);
  }

  // PyTorch pops what it pushed before this session began, too.
  void popCorrelationId() override {
    if (!open_operations.empty()) {
      open_operations.pop_back();
    }
  }

 private:
  static libkineto::ActivityType type_of(const Event& event) {
    return event.activity == Activity::kCopy ? libkineto::ActivityType::GPU_MEMCPY
                                             : libkineto::ActivityType::CONCURRENT_KERNEL;
  }

  static void describe(libkineto::GenericTraceActivity& activity, const Event& event) {
    activity.startTime = event.start;
    activity.endTime = event.end;
    activity.device = event.core;
    activity.resource = 0;
    activity.id = static_cast<int32_t>(event.correlation);
    activity.flow.id = static_cast<uint32_t>(event.correlation);
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = false;
    activity.addMetadata("device", static_cast<int>(event.core));
    activity.addMetadata("stream", 0);
    activity.addMetadata("correlation", event.correlation);
    if (event.activity == Activity::kCopy) {
      activity.addMetadata("bytes", event.nbytes);
    }
  }

  static libkineto::DeviceInfo device_info(c10::DeviceIndex core) {
    const auto name = "neuron:" + std::to_string(core);
    return {core, kRowsBelowCpu + core, name, name};
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
  std::vector<Event> recorded_;
  std::set<c10::DeviceIndex> cores_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "neuron";
    return name;
  }

  const std::set<libkineto::ActivityType>& availableActivities() const override {
    static const std::set<libkineto::ActivityType> types{
        libkineto::ActivityType::CONCURRENT_KERNEL, libkineto::ActivityType::GPU_MEMCPY};
    return types;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>& wanted,
      const libkineto::Config& /*config*/) override {
    for (const auto type : availableActivities()) {
      if (wanted.count(type) != 0) {
        return std::make_unique<Session>();
      }
    }
    return nullptr;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t /*ts_ms*/,
      int64_t /*duration_ms*/,
      const std::set<libkineto::ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

#endif // USE_KINETO

// torch.autograd.profiler without Kineto asks for times at the borders of operations. The device is synchronous: the
// host's clock has them.
struct Markers final : torch::profiler::impl::ProfilerStubs {
  void record(
      c10::DeviceIndex* device,
      torch::profiler::impl::ProfilerVoidEventStub* event,
      int64_t* cpu_ns) const override {
    if (device != nullptr) {
      *device = current_core();
    }
    *event = std::make_shared<int64_t>(now());
    if (cpu_ns != nullptr) {
      *cpu_ns = *std::static_pointer_cast<int64_t>(*event);
    }
  }

  // In microseconds.
  float elapsed(
      const torch::profiler::impl::ProfilerVoidEventStub* start,
      const torch::profiler::impl::ProfilerVoidEventStub* end) const override {
    const auto difference = *static_cast<const int64_t*>(end->get()) - *static_cast<const int64_t*>(start->get());
    return static_cast<float>(difference) / 1e3f;
  }

  void mark(const char* /*name*/) const override {}
  void rangePush(const char* /*name*/) const override {}
  void rangePop() const override {}

  bool enabled() const override {
    return true;
  }

  void onEachDevice(std::function<void(int)> function) const override {
    for (int core = 0; core < core_count(); core++) {
      function(core);
    }
  }

  void synchronize() const override {}
};

} // namespace

void record(const std::string& name, Activity activity, c10::DeviceIndex core, int64_t start, int64_t nbytes) {
  const auto end = now();
  const auto correlation = open_operations.empty() ? 0 : open_operations.back();
  const std::lock_guard<std::mutex> lock(events_mutex);
  if (is_recording()) {
    // Not the bare name of the operation: the CPU's half of the table has a row of that name.
    auto shown = activity == Activity::kKernel ? "neuron " + name : name;
    events.push_back({std::move(shown), activity, core, start, end, nbytes, correlation});
  }
}

void register_profiler() {
  static const Markers markers;
  torch::profiler::impl::registerPrivateUse1Methods(const_cast<Markers*>(&markers));
#ifdef USE_KINETO
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Profiler>(); });
#endif
}

} // namespace neuron::profiler
