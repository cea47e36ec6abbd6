// The driver refuses what cuda.h documents as an error (refusals.def): each row breaks one precondition, and the error is
// the one that the header names, which is read where the build found it.
#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

constexpr CUdevice kNoDevice = 99;
constexpr bool kNullDriver = TESSERA_ASKS_NULL_DRIVER;
constexpr const char* kBadPtx = ".version 8.0\n.target sm_75\n.address_size 64\nnonsense\n";

const std::string& header_text() {
  static const std::string text = [] {
    std::ifstream file(TESSERA_CUDA_HEADER);
    std::stringstream whole;
    whole << file.rdbuf();
    return std::move(whole).str();
  }();
  return text;
}

// The comment in front of a function's declaration, its lines joined by single spaces.
std::string comment_of(const std::string& function) {
  const std::string& header = header_text();
  const size_t declared = header.find("CUresult CUDAAPI " + function + "(");
  const size_t begin = header.rfind("/**", declared);
  if (declared == header.npos || begin == header.npos) return "";
  std::istringstream words(
      std::regex_replace(header.substr(begin, declared - begin), std::regex("\n *\\*+"), "\n "));
  std::string out;
  for (std::string word; words >> word;) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::set<std::string> errors_in(const std::string& text) {
  const std::regex error("CUDA_ERROR_[A-Z_]+");
  std::set<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), error), end; at != end; ++at) out.insert(at->str());
  return out;
}

std::string name_of(CUresult result) {
  std::smatch found;
  const std::regex row("(CUDA_(ERROR_[A-Z_]+|SUCCESS)) *= *" + std::to_string(int(result)) + ",");
  return std::regex_search(header_text(), found, row) ? found[1].str() : std::to_string(int(result));
}

}  // namespace

class Refusals : public Cuda {
 public:
  void SetUp() override {
    Cuda::SetUp();
    kernel = Cuda::function("fill");
    ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    ASSERT_CU(cuLibraryGetKernel(&library_kernel, library, "fill"));
    word_ = alloc(64);
    if (!kNullDriver) set_up_kernels();
  }
  void set_up_kernels() {
    ASSERT_CU(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
    gate_ = std::make_unique<Gate>();
    arguments_[0] = &word_;
    kernel_parameters.func = kernel;
    kernel_parameters.gridDimX = kernel_parameters.gridDimY = kernel_parameters.gridDimZ = 1;
    kernel_parameters.blockDimX = kernel_parameters.blockDimY = kernel_parameters.blockDimZ = 1;
    kernel_parameters.kernelParams = parameters;
    both_parameters = kernel_parameters;
    both_parameters.extra = extra;
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    ASSERT_CU(cuGraphAddKernelNode(&kernel_node, graph, nullptr, 0, &kernel_parameters));
    ASSERT_CU(cuGraphAddEmptyNode(&empty_node, graph, nullptr, 0));
    ASSERT_CU(cuGraphInstantiate(&executable, graph, 0));
    unknown_operation.operation = CUstreamBatchMemOpType(1000);
  }
  void TearDown() override {
    gate_.reset();
    if (registered_) cuMemHostUnregister(registered_);
    if (green_) cuGreenCtxDestroy(green_);
    Cuda::TearDown();
  }

  template <class F>
  CUresult without_context(F&& call) {
    CUcontext before = nullptr;
    EXPECT_CU(cuCtxGetCurrent(&before));
    while (cuCtxSetCurrent(nullptr) == CUDA_SUCCESS) {
      CUcontext below = nullptr;
      cuCtxGetCurrent(&below);
      if (!below) break;
    }
    const CUresult result = call();
    EXPECT_CU(cuCtxSetCurrent(before));
    return result;
  }
  template <class F>
  CUresult beside_capture(F&& call) {
    CUstream blocking = nullptr;
    EXPECT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    EXPECT_CU(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    const CUresult result = call();
    EXPECT_CU(cuStreamEndCapture(blocking, &other_graph));
    return result;
  }
  Gate& gate() { return *gate_; }
  CUdeviceptr word() const { return word_; }
  CUevent new_event(unsigned event_flags = 0) {
    CUevent made = nullptr;
    EXPECT_CU(cuEventCreate(&made, event_flags));
    return made;
  }
  CUevent recorded(unsigned event_flags) {
    const CUevent made = new_event(event_flags);
    EXPECT_CU(cuEventRecord(made, nullptr));
    EXPECT_CU(cuEventSynchronize(made));
    return made;
  }
  CUevent recorded_behind_gate() {
    const CUevent made = new_event();
    EXPECT_CU(gate().hold(stream));
    EXPECT_CU(cuEventRecord(made, stream));
    return made;
  }
  template <class F>
  void in_another_context(F&& call) {
    CUcontext another = nullptr;
    EXPECT_CU(cuCtxCreate(&another, nullptr, 0, 0));
    call();
    EXPECT_CU(cuCtxPopCurrent(&another));
  }
  CUevent event_of_another_context() {
    in_another_context([&] { event = new_event(); });
    return event;
  }
  CUlaunchConfig& config_of_another_context() {
    in_another_context([&] { EXPECT_CU(cuStreamCreate(&config.hStream, 0)); });
    return config;
  }
  CUdevResourceDesc description_of(CUdevResource whole) {
    EXPECT_CU(cuDevResourceGenerateDesc(&description, &whole, 1));
    return description;
  }
  CUgreenCtx green() {
    if (!green_) {
      EXPECT_CU(cuGreenCtxCreate(&green_, description_of(resource), 0, CU_GREEN_CTX_DEFAULT_STREAM));
    }
    return green_;
  }
  void* registered() {
    if (!registered_) {
      EXPECT_CU(cuMemHostRegister(page, sizeof page, 0));
      registered_ = page;
    }
    return registered_;
  }
  CUstreamBatchMemOpParams& write_word() {
    operation_.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, word(), {0}, 0, 0};
    return operation_;
  }

  // Valid objects, and places for answers. Rows name them.
  CUstream stream = nullptr, other_stream = nullptr;
  CUfunction kernel = nullptr, function = nullptr;
  CUlibrary library = nullptr, other_library = nullptr;
  CUkernel library_kernel = nullptr;
  CUmodule other_module = nullptr;
  CUcontext other_context = nullptr;
  CUgreenCtx other_green = nullptr;
  CUdevResource resource{}, no_resource{}, part{};
  CUdevResourceDesc description = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr, other_graph = nullptr;
  CUgraphExec executable = nullptr, other_executable = nullptr;
  CUgraphNode kernel_node = nullptr, empty_node = nullptr, node = nullptr;
  CUgraphNodeType node_type{};
  CUDA_KERNEL_NODE_PARAMS kernel_parameters{}, both_parameters{}, got_parameters{};
  CUDA_MEMCPY3D copy_parameters{};
  CUDA_MEMSET_NODE_PARAMS fill_parameters{};
  CUDA_HOST_NODE_PARAMS host_parameters{};
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch_parameters{};
  CUkernelNodeAttrValue attribute{};
  CUlaunchConfig config{};
  CUstreamCaptureStatus capture_status{};
  CUstreamCaptureMode no_mode = CUstreamCaptureMode(77);
  CUstreamBatchMemOpParams unknown_operation{};
  CUfunctionLoadingState loading{};
  CUuuid uuid{};
  CUdeviceptr pointer = 0;
  int number = 0;
  unsigned flags = 0, groups = 1;
  size_t size = 0;
  float real_number = 0;
  char text[64] = {};
  const char* name = nullptr;
  void* address = nullptr;
  alignas(4096) char page[4096] = {};
  void** const parameters = arguments_;
  void* extra[1] = {CU_LAUNCH_PARAM_END};

 private:
  std::unique_ptr<Gate> gate_;
  CUdeviceptr word_ = 0;
  uint32_t value_ = 0, count_ = 0;
  void* arguments_[4] = {nullptr, &value_, &count_, nullptr};
  CUgreenCtx green_ = nullptr;
  void* registered_ = nullptr;
  CUstreamBatchMemOpParams operation_{};
};

// Rows as members, so that they name what is above without saying of whom.
#define TS_ROW_NAME_(a, b) a##b
#define TS_ROW_NAME(a, b) TS_ROW_NAME_(a, b)
#define TS_REFUSAL_OF_BOTH(function, quote, call) \
  CUresult TS_ROW_NAME(row, __LINE__)() {         \
    return call;                                  \
  }
#if TESSERA_ASKS_NULL_DRIVER
#define TS_REFUSAL(function, quote, call)
#else
#define TS_REFUSAL TS_REFUSAL_OF_BOTH
#endif
class EachRefusal : public Refusals, public ::testing::WithParamInterface<size_t> {
 public:
#include "refusals.def"
};

struct Refusal {
  const char *function, *quote, *call;
  CUresult (EachRefusal::*ask)();
};
#define TS_REFUSAL_OF_BOTH(function, quote, call) \
  {#function, quote, #call, &EachRefusal::TS_ROW_NAME(row, __LINE__)},
#if TESSERA_ASKS_NULL_DRIVER
#define TS_REFUSAL(function, quote, call)
#else
#define TS_REFUSAL TS_REFUSAL_OF_BOTH
#endif
const Refusal kRefusals[] = {
#include "refusals.def"
};

TEST_P(EachRefusal, IsTheHeaders) {
  const Refusal& row = kRefusals[GetParam()];
  const std::string comment = comment_of(row.function);
  ASSERT_NE(comment.find(row.quote), comment.npos)
      << row.function << " has no '" << row.quote << "': " << comment;
  const CUresult result = (this->*row.ask)();
  const bool listed = std::string(row.quote) == "\\return";
  const std::set<std::string> expected =
      errors_in(listed ? comment.substr(comment.find("\\return")) : row.quote);
  EXPECT_TRUE(expected.empty() ? result != CUDA_SUCCESS : expected.contains(name_of(result)))
      << row.call << " answered " << name_of(result) << ", although cuda.h says: " << row.quote;
}

INSTANTIATE_TEST_SUITE_P(Rows, EachRefusal, ::testing::Range(size_t(0), std::size(kRefusals)),
                         [](const auto& row) {
                           return kRefusals[row.param].function + ("_" + std::to_string(row.param));
                         });

}  // namespace softgpu_driver_test
