// Images that hold machine code and the PTX that it came from: the original stays as it is, the variant is
// compiled beside it. (The software GPU runs the PTX of such an image; the shim decides by what the image
// holds for this device.)
#include <filesystem>
#include <optional>
#include <thread>

#include "interpose/gate/signals.h"
#include "interpose/state/config.h"
#include "interpose/track/reasons.h"
#include "interpose/track/track.h"
#include "kernels/image/image.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

namespace abi = ipc::abi;
using driver_api::real;

class Siblings : public test::Soft {
 public:
  void TearDown() override {
    EXPECT_TRUE(settled());
    EXPECT_EQ(track::siblings_alive(), 0u);  // every test unloads what it loaded
    Soft::TearDown();
  }
  abi::OutcomeCounts counted(abi::LaunchOutcome outcome) {
    abi::CuttingLines lines{};
    link->cutting = &lines;
    gate::publish_signals(link);
    link->cutting = nullptr;
    return lines.outcomes[outcome];
  }
  uint64_t launches_of(abi::LaunchOutcome outcome) { return counted(outcome).launches; }
  static bool settled() {
    return test::eventually([] { return track::siblings_idle(); });
  }

  CUmodule load(const char* file) {
    CUmodule module = nullptr;
    EXPECT_EQ(hook_cuModuleLoadData(&module, bytes_of(file).data()), CUDA_SUCCESS) << file;
    return module;
  }
  CUlibrary load_library(const char* file) {
    CUlibrary library = nullptr;
    EXPECT_EQ(
        hook_cuLibraryLoadData(&library, bytes_of(file).data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        CUDA_SUCCESS)
        << file;
    return library;
  }
  uint64_t fill(CUfunction f) {  // kernel(out), 64 blocks of 32: slices
    CUdeviceptr out = zeros(64 * 32);
    void* params[] = {&out};
    const uint64_t n = cut_of([&] { EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params), CUDA_SUCCESS); });
    filled = read(out, 64 * 32);
    return n;
  }
  uint64_t approximate(CUfunction f) {
    CUdeviceptr out = zeros(64 * 32);
    float a = 0.001f, b = 0.3f;
    void* params[] = {&out, &a, &b};
    const uint64_t n = cut_of([&] { EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params), CUDA_SUCCESS); });
    filled = read(out, 64 * 32);
    return n;
  }
  std::vector<uint32_t> filled;
};

TEST_F(Siblings, CompiledInTheBackgroundAndUnloadedBeforeTheOriginal) {
  CUmodule module = load("cut_both.fatbin");
  const CUfunction f = function_of(module, "stamp");
  EXPECT_EQ(stamp(f), 0u);  // asked for; this launch goes whole
  ASSERT_TRUE(settled());
  EXPECT_EQ(track::siblings_alive(), 1u);
  EXPECT_GT(stamp(f), 1u);
  EXPECT_GT(stamp(f, {5, 7, 3}), 1u);
  // The program's module shows nothing of it.
  unsigned n = 0, n_driver = 0;
  ASSERT_EQ(hook_cuModuleGetFunctionCount(&n, module), CUDA_SUCCESS);
  ASSERT_EQ(real().cuModuleGetFunctionCount(&n_driver, module), CUDA_SUCCESS);
  EXPECT_EQ(n, n_driver);
  EXPECT_NE(hook_cuModuleUnload(nullptr), CUDA_SUCCESS);  // takes nothing away
  EXPECT_EQ(track::siblings_alive(), 1u);
  // Order of the two unloads.
  static std::vector<CUmodule> unloaded;
  unloaded.clear();
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto before = slots.cuModuleUnload;
  slots.cuModuleUnload = [](CUmodule m) {
    unloaded.push_back(m);
    return before(m);
  };
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  slots.cuModuleUnload = before;
  ASSERT_EQ(unloaded.size(), 2u);
  EXPECT_EQ(unloaded[1], module);
  EXPECT_EQ(track::siblings_alive(), 0u);
}

// An image of thousands of kernels is loaded as it is; what is launched of it gets its variant then, by the
// compiler that made the original.
TEST_F(Siblings, OfAnImageOfManyKernels) {
  std::string text = bytes_of("cut.ptx").data();
  for (int i = 0; i < 2'000; i++) text += ".visible .entry other" + std::to_string(i) + "() { ret; }\n";
  const auto image = track::inspect(text.c_str(), nullptr);
  ASSERT_TRUE(image && image->source);
  EXPECT_TRUE(image->text.empty() && image->kernels.empty());
  const uint64_t bits = track::refusals(track::RunTimeReason::kBitStability);
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, text.c_str()), CUDA_SUCCESS);
  const CUfunction f = function_of(module, "stamp"), g = function_of(module, "approximate");
  EXPECT_EQ(stamp(f), 0u);
  EXPECT_EQ(approximate(g), 0u);
  ASSERT_TRUE(settled());
  EXPECT_GT(stamp(f), 1u);
  EXPECT_GT(approximate(g), 1u);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kBitStability), bits);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Siblings, OfALibrary) {
  const CUlibrary library = load_library("cut_both.fatbin");
  CUkernel kernel = nullptr;
  ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "stamp"), CUDA_SUCCESS);
  const auto f = reinterpret_cast<CUfunction>(kernel);
  EXPECT_EQ(stamp(f), 0u);
  ASSERT_TRUE(settled());
  EXPECT_GT(stamp(f), 1u);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(Siblings, OfAModuleOfALibraryEndWithTheLibrary) {
  const CUlibrary library = load_library("cut_both.fatbin");
  CUmodule part = nullptr;
  ASSERT_EQ(hook_cuLibraryGetModule(&part, library), CUDA_SUCCESS);
  const CUfunction f = function_of(part, "stamp");
  EXPECT_EQ(stamp(f), 0u);
  ASSERT_TRUE(settled());
  EXPECT_GT(stamp(f), 1u);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(track::siblings_alive(), 0u);
  EXPECT_EQ(state::find_kernel(f), nullptr);
}

TEST_F(Siblings, WhatNeedsItsModuleOrMayChangeBitsIsRefused) {
  CUmodule module = load("cut_both.fatbin");
  const uint64_t state = track::refusals(slice::GlobalsObstacle::kConstant);
  const uint64_t bits = track::refusals(track::RunTimeReason::kBitStability);
  const CUfunction constant = function_of(module, "reads_const");
  EXPECT_EQ(fill(constant), 0u);
  ASSERT_TRUE(settled());
  EXPECT_EQ(fill(constant), 0u);
  for (uint32_t i = 0; i < filled.size(); i++) ASSERT_EQ(filled[i], (i & 3) * 10 + 10 + i / 32);
  EXPECT_EQ(track::refusals(slice::GlobalsObstacle::kConstant), state + 1);
  const CUfunction f = function_of(module, "approximate");
  EXPECT_EQ(approximate(f), 0u);
  ASSERT_TRUE(settled());
  EXPECT_EQ(approximate(f), 0u);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kBitStability), bits + 1);
  EXPECT_EQ(track::siblings_alive(), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  // The same compilation: D13 has nothing against it.
  module = load("cut_ptx.fatbin");
  EXPECT_GT(approximate(function_of(module, "approximate")), 1u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// A variant that `tessera ptxas` compiled and proved is loaded as machine code, and cut whatever its arithmetic is.
TEST_F(Siblings, WhatIsProvedIsNotCompiledAgain) {
  const auto kinds_of_loads = [this](CUmodule module) {
    static std::vector<image::EntryKind> chosen;
    chosen.clear();
    auto& slots = driver_api::mutable_real_for_tests();
    static const auto before = slots.cuModuleLoadData;
    slots.cuModuleLoadData = [](CUmodule* m, const void* bytes) {
      const auto entries = image::list_unsized(bytes);
      const image::Entry* entry = entries ? image::choose(*entries, 90) : nullptr;
      if (entry) chosen.push_back(entry->kind);
      return before(m, bytes);
    };
    EXPECT_EQ(approximate(function_of(module, "approximate")), 0u);
    EXPECT_TRUE(settled());
    slots.cuModuleLoadData = before;
    return chosen;
  };
  const uint64_t bits = track::refusals(track::RunTimeReason::kBitStability);
  CUmodule module = load("cut_proved.fatbin");
  EXPECT_EQ(kinds_of_loads(module), std::vector{image::EntryKind::kCubin});
  const auto uncut = filled;
  EXPECT_GT(approximate(function_of(module, "approximate")), 1u);
  EXPECT_EQ(filled, uncut);
  const CUfunction f = function_of(module, "uses_globals");  // with variables of the module
  EXPECT_EQ(fill(f), 0u);
  ASSERT_TRUE(settled());
  EXPECT_GT(fill(f), 1u);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kBitStability), bits);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  // They prove nothing about other machine code.
  std::vector<char> bytes = bytes_of("cut_proved.fatbin");
  const auto entries = image::list_unsized(bytes.data());
  ASSERT_TRUE(entries.ok());
  bytes[size_t((*entries)[0].stored_payload.data() + 64 - reinterpret_cast<uint8_t*>(bytes.data()))] ^= 1;
  module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, bytes.data()), CUDA_SUCCESS);
  EXPECT_TRUE(kinds_of_loads(module).empty());
  EXPECT_EQ(track::refusals(track::RunTimeReason::kBitStability), bits + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// The same of an image as nvcc made it, by what `tessera prepare` put into the cache.
TEST_F(Siblings, WhatWasPreparedIsFoundInTheCache) {
  char folder[] = "/tmp/tessera-prepared-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string command = std::string("TESSERA_CACHE_DIR=") + folder +
                              " TESSERA_CACHE_MAX_MB=16 TESSERA_PTXAS=" + TS_PTXAS + " " + TS_TESSERA +
                              " prepare " TS_IMAGES "/cut_both.fatbin >/dev/null";
  ASSERT_EQ(system(command.c_str()), 0);
  constexpr const char* kVariables[] = {"TESSERA_CACHE_DIR", "TESSERA_CACHE_MAX_MB"};
  std::optional<std::string> before[2];
  for (int i = 0; i < 2; i++)
    if (const char* value = getenv(kVariables[i])) before[i] = value;
  setenv(kVariables[0], folder, 1);
  setenv(kVariables[1], "16", 1);
  state::load_config();
  CUmodule module = load("cut_both.fatbin");
  const CUfunction f = function_of(module, "approximate");
  EXPECT_EQ(approximate(f), 0u);
  const auto uncut = filled;
  EXPECT_TRUE(settled());
  EXPECT_GT(approximate(f), 1u);
  EXPECT_EQ(filled, uncut);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  for (int i = 0; i < 2; i++)
    before[i] ? setenv(kVariables[i], before[i]->c_str(), 1) : unsetenv(kVariables[i]);
  state::load_config();
  std::filesystem::remove_all(folder);
}

// How much of a program was cut, and what stands in the way of the rest.
TEST_F(Siblings, LaunchesAreCountedByWhatBecameOfThem) {
  struct Case {
    const char *image, *kernel;
    abi::LaunchOutcome asked, then;  // the launch that asks for the sibling, and the next one
  };
  const Case cases[] = {
      {"cut_both.fatbin", "stamp", abi::kOutcomePossible, abi::kOutcomeSliced},
      {"cut_both.fatbin", "reads_const", abi::kOutcomePossible, abi::kOutcomeState},
      {"cut_both.fatbin", "approximate", abi::kOutcomePossible, abi::kOutcomeBits},
      {"cut_other.fatbin", "stamp", abi::kOutcomeNoPtx, abi::kOutcomeNoPtx},
      {"cut_ptx.fatbin", "stamp", abi::kOutcomeSliced, abi::kOutcomeSliced},
  };
  for (const Case& c : cases) {
    CUmodule module = load(c.image);
    const CUfunction f = function_of(module, c.kernel);
    const std::string name = c.kernel;
    for (const abi::LaunchOutcome expected : {c.asked, c.then}) {
      const uint64_t before = launches_of(expected);
      name == "stamp" ? stamp(f) : name == "approximate" ? approximate(f) : fill(f);
      EXPECT_EQ(launches_of(expected), before + 1) << c.image << ' ' << name << ' ' << expected;
      ASSERT_TRUE(settled());
    }
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  }
}

// The user's own choice stands in the way, and nothing of the kernel or its image.
TEST_F(Siblings, LaunchesOfAProgramThatIsNeverCutSaySo) {
  setenv("TESSERA_SLICE", "0", 1);
  state::load_config();
  for (const char* image : {"cut_ptx.fatbin", "cut_both.fatbin", "cut_other.fatbin"}) {
    CUmodule module = load(image);
    const uint64_t before = launches_of(abi::kOutcomeOff);
    EXPECT_EQ(stamp(function_of(module, "stamp")), 0u) << image << ": in slices";
    EXPECT_EQ(launches_of(abi::kOutcomeOff), before + 1) << image;
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  }
  unsetenv("TESSERA_SLICE");
  state::load_config();
}

// Nobody times a launch as a whole that goes out in slices.
TEST_F(Siblings, ALaunchInSlicesCountsWithTheTimeOfItsSlices) {
  const auto sliced_ns = [&] { return counted(abi::kOutcomeSliced).gpu_ns; };
  const auto completed_ns = [&] { return std::atomic_ref(region->usage.completed_ns).load(); };
  CUmodule module = load("cut_ptx.fatbin");
  const CUfunction f = function_of(module, "stamp");
  for (int i = 0; i < 3; i++) {
    const uint64_t sliced = sliced_ns(), completed = completed_ns();
    EXPECT_GT(stamp(f), 1u);
    ASSERT_TRUE(test::eventually([&] { return in_flight() == 0; }));
    EXPECT_GT(sliced_ns(), sliced);
    EXPECT_EQ(sliced_ns() - sliced, completed_ns() - completed);
  }
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// The variant reads the host's writes, and the host the variant's: there is one variable, the original's.
TEST_F(Siblings, VariablesOfTheModuleArePassedByAddress) {
  for (int round = 0; round < 2; round++) {  // loaded again, they lie elsewhere
    CUmodule module = load("cut_both.fatbin");
    const CUfunction f = function_of(module, "uses_globals");
    CUdeviceptr counter = 0, sums = 0, handed = 0;
    size_t bytes = 0;
    ASSERT_EQ(real().cuModuleGetGlobal_v2(&counter, &bytes, module, "counter"), CUDA_SUCCESS);
    ASSERT_EQ(real().cuModuleGetGlobal_v2(&sums, &bytes, module, "sums"), CUDA_SUCCESS);
    ASSERT_EQ(real().cuModuleGetGlobal_v2(&handed, &bytes, module, "handed"), CUDA_SUCCESS);
    EXPECT_EQ(fill(f), 0u);
    ASSERT_TRUE(settled());
    for (const uint32_t written : {100u, 2000u}) {
      const uint32_t zero[64] = {};
      ASSERT_EQ(real().cuMemcpyHtoD_v2(counter, &written, 4), CUDA_SUCCESS);
      ASSERT_EQ(real().cuMemcpyHtoD_v2(sums, zero, 16), CUDA_SUCCESS);
      ASSERT_EQ(real().cuMemcpyHtoD_v2(handed, zero, 256), CUDA_SUCCESS);
      EXPECT_GT(fill(f), 1u);
      for (uint32_t i = 0; i < filled.size(); i++) ASSERT_EQ(filled[i], written + i / 32);
      uint32_t sum[4], three[64];
      ASSERT_EQ(real().cuMemcpyDtoH_v2(sum, sums, 16), CUDA_SUCCESS);
      ASSERT_EQ(real().cuMemcpyDtoH_v2(three, handed, 256), CUDA_SUCCESS);
      for (const uint32_t s : sum) EXPECT_EQ(s, written * 16 * 32);
      for (uint32_t i = 0; i < 64; i++) EXPECT_EQ(three[i], i * 3);
    }
    // Parameters by buffer.
    CUdeviceptr out = zeros(64 * 32);
    size_t size = sizeof out;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &out, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    EXPECT_GT(cut_of([&] { EXPECT_EQ(launch3(f, {64, 1, 1}, 32, nullptr, 0, extra), CUDA_SUCCESS); }), 1u);
    EXPECT_EQ(read(out, 64 * 32)[40], 2001u);
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  }
}

TEST_F(Siblings, VariablesOfALibraryFollowItsContext) {
  CUcontext own = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_EQ(hook_cuCtxCreate_v4(&own, nullptr, 0, 0), CUDA_SUCCESS);
  library = load_library("cut_both.fatbin");
  ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "uses_globals"), CUDA_SUCCESS);
  const auto f = reinterpret_cast<CUfunction>(kernel);
  for (uint32_t written : {30u, 40u}) {  // in the one context, then in the other
    CUdeviceptr counter = 0;
    size_t bytes = 0;
    ASSERT_EQ(real().cuLibraryGetGlobal(&counter, &bytes, library, "counter"), CUDA_SUCCESS);
    ASSERT_EQ(real().cuMemcpyHtoD_v2(counter, &written, 4), CUDA_SUCCESS);
    EXPECT_EQ(fill(f), 0u);
    ASSERT_TRUE(settled());
    EXPECT_GT(fill(f), 1u);
    for (uint32_t i = 0; i < filled.size(); i++) ASSERT_EQ(filled[i], written + i / 32);
    if (written == 30) {
      ASSERT_EQ(hook_cuCtxDestroy_v2(own), CUDA_SUCCESS);
      ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
    }
  }
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(Siblings, AVariableThatTheDriverDoesNotFindIsRefused) {
  const uint64_t before = track::refusals(track::RunTimeReason::kVariableAddress);
  CUmodule module = load("cut_both.fatbin");
  const CUfunction f = function_of(module, "reads_global");
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto found = slots.cuModuleGetGlobal_v2;
  slots.cuModuleGetGlobal_v2 = [](CUdeviceptr* at, size_t* bytes, CUmodule m, const char* name) {
    const CUresult result = found(at, bytes, m, name);
    *bytes += 4;  // another object
    return result;
  };
  EXPECT_EQ(fill(f), 0u);
  EXPECT_TRUE(settled());
  slots.cuModuleGetGlobal_v2 = found;
  EXPECT_EQ(fill(f), 0u);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kVariableAddress), before + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Siblings, RelaxedBitsAreTheUsersChoice) {
  setenv("TESSERA_BIT_STABILITY", "relaxed", 1);
  state::load_config();
  CUmodule module = load("cut_both.fatbin");
  const CUfunction f = function_of(module, "approximate");
  EXPECT_EQ(approximate(f), 0u);
  const auto uncut = filled;
  EXPECT_TRUE(settled());
  EXPECT_GT(approximate(f), 1u);
  EXPECT_EQ(filled, uncut);  // one compiler here
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  setenv("TESSERA_BIT_STABILITY", "sloppy", 1);  // no such word: strict
  state::load_config();
  EXPECT_FALSE(state::config().relaxed_bits);
  unsetenv("TESSERA_BIT_STABILITY");
  state::load_config();
}

// Machine code made from another virtual architecture than the PTX: they may differ in anything.
TEST_F(Siblings, PtxOfAnotherArchitectureIsNotTheSource) {
  const uint64_t none = track::refusals(track::RunTimeReason::kNoSource);
  CUmodule module = load("cut_other.fatbin");
  EXPECT_EQ(track::refusals(track::RunTimeReason::kNoSource), none + 1);
  const CUfunction f = function_of(module, "stamp");
  EXPECT_EQ(stamp(f), 0u);
  ASSERT_TRUE(settled());
  EXPECT_EQ(stamp(f), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Siblings, NothingIsCompiledWhileACaptureIsOpen) {
  CUmodule module = load("cut_both.fatbin");
  const CUfunction f = function_of(module, "stamp");
  const CUstream stream = new_stream();
  CUgraph graph = nullptr;
  CUdeviceptr out = zeros(64 * 32);
  CUstream own = nullptr;
  ASSERT_EQ(real().cuStreamCreate(&own, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  std::thread other([&] {  // another thread, another stream
    real().cuCtxSetCurrent(context);
    uint32_t salt = 0;
    void* params[] = {&out, &salt};
    EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params, 0, nullptr, own), CUDA_SUCCESS);
    state::t_thread = {};
  });
  other.join();
  EXPECT_FALSE(track::siblings_idle());  // asked for, and waits
  EXPECT_EQ(track::siblings_alive(), 0u);
  ASSERT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ASSERT_TRUE(settled());
  EXPECT_EQ(track::siblings_alive(), 1u);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_GT(stamp(f), 1u);
  read(out, 64 * 32);
  EXPECT_EQ(real().cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuStreamDestroy_v2(own), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Siblings, EndWithTheirContext) {
  CUcontext own = nullptr;
  ASSERT_EQ(hook_cuCtxCreate_v4(&own, nullptr, 0, 0), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUmodule module = load("cut_both.fatbin");
  library = load_library("cut_both.fatbin");
  ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "stamp"), CUDA_SUCCESS);
  const CUfunction f = function_of(module, "stamp");
  EXPECT_EQ(stamp(f), 0u);
  EXPECT_EQ(stamp(reinterpret_cast<CUfunction>(kernel)), 0u);
  ASSERT_TRUE(settled());
  EXPECT_EQ(track::siblings_alive(), 2u);
  EXPECT_GT(stamp(f), 1u);
  EXPECT_GT(stamp(reinterpret_cast<CUfunction>(kernel)), 1u);
  ASSERT_EQ(hook_cuCtxDestroy_v2(own), CUDA_SUCCESS);
  EXPECT_EQ(track::siblings_alive(), 0u);
  // The library goes on in another context, and is cut there again after a while.
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(stamp(reinterpret_cast<CUfunction>(kernel)), 0u);
  ASSERT_TRUE(settled());
  EXPECT_GT(stamp(reinterpret_cast<CUfunction>(kernel)), 1u);
  // In a third one it is not: one sibling for one context.
  ASSERT_EQ(hook_cuCtxCreate_v4(&own, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(stamp(reinterpret_cast<CUfunction>(kernel)), 0u);
  ASSERT_EQ(hook_cuCtxDestroy_v2(own), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_GT(stamp(reinterpret_cast<CUfunction>(kernel)), 1u);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(Siblings, ADriverThatRefusesLeavesTheOriginal) {
  CUmodule module = load("cut_both.fatbin");
  const CUfunction f = function_of(module, "stamp");
  const uint64_t failed = track::refusals(track::RunTimeReason::kSiblingFailed);
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto before = slots.cuModuleLoadData;
  slots.cuModuleLoadData = [](CUmodule*, const void*) { return CUDA_ERROR_OUT_OF_MEMORY; };
  EXPECT_EQ(stamp(f), 0u);
  EXPECT_TRUE(settled());
  slots.cuModuleLoadData = before;
  EXPECT_EQ(stamp(f), 0u);
  EXPECT_TRUE(settled());
  EXPECT_EQ(track::refusals(track::RunTimeReason::kSiblingFailed), failed + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// Unloading while the compilation runs: it waits, and the sibling is gone before the original.
TEST_F(Siblings, UnloadedWhileBeingCompiled) {
  for (int i = 0; i < 20; i++) {
    CUmodule module = load("cut_both.fatbin");
    const CUfunction f = function_of(module, "stamp");
    EXPECT_EQ(stamp(f), 0u);
    if (i % 2) std::this_thread::yield();
    ASSERT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
    EXPECT_EQ(track::siblings_alive(), 0u);
  }
}

}  // namespace
}  // namespace tessera
