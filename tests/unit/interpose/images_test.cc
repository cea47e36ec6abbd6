// Images that get variants, whatever call loads them. A launch that was cut leaves the same results as the uncut one.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "interpose/state/config.h"
#include "interpose/track/track.h"
#include "kernels/cache/rewritten.h"
#include "kernels/cache/store.h"
#include "kernels/image/write.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

using driver_api::real;

class Images : public test::Soft {
 public:
  // The driver's own answer to the same load, without us.
  CUresult drivers_word(const std::string& path) {
    CUmodule module = nullptr;
    return real().cuModuleLoad(&module, path.c_str());
  }
  std::string scratch_file(const std::string& contents) {
    const std::string path = testing::TempDir() + "tessera-image-" + std::to_string(getpid());
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }
};

TEST_F(Images, PtxInMemoryIsCut) {
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
  const CUfunction f = function_of(module, "stamp");
  EXPECT_GT(stamp(f), 2u);
  EXPECT_GT(stamp(f, {5, 7, 3}), 2u);
  EXPECT_EQ(stamp(f, {2, 1, 1}), 0u);  // too small to be worth it
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Images, PtxWithJitOptionsIsCutAndAnswersThroughThem) {
  CUmodule module = nullptr;
  char log[256] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(uintptr_t(sizeof log))};
  ASSERT_EQ(hook_cuModuleLoadDataEx(&module, bytes_of("cut.ptx").data(), 2, options, values), CUDA_SUCCESS);
  EXPECT_GT(stamp(function_of(module, "stamp")), 2u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  // A bad image: the driver's own code and log, as if we were not there.
  EXPECT_EQ(hook_cuModuleLoadDataEx(&module, ".version 8.0\n.target sm_90\nnonsense", 2, options, values),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(std::string(log), "untouched");
}

TEST_F(Images, FatBinaryAndLibraryAreCut) {
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadFatBinary(&module, bytes_of("cut_ptx.fatbin").data()), CUDA_SUCCESS);
  EXPECT_GT(stamp(function_of(module, "stamp")), 2u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  // The driver may keep the pointer; the program keeps its image, ours must stay, too.
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* value = nullptr;
  const auto bytes = bytes_of("cut_ptx.fatbin");
  ASSERT_EQ(hook_cuLibraryLoadData(&library, bytes.data(), nullptr, nullptr, 0, &option, &value, 1),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "stamp"), CUDA_SUCCESS);
  EXPECT_GT(stamp(reinterpret_cast<CUfunction>(kernel)), 2u);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

// Each block writes the last parameter.
std::string last_of(int n_words) {
  std::string params, last = "k_param_" + std::to_string(n_words);
  for (int i = 1; i <= n_words; i++) params += ", .param .u32 k_param_" + std::to_string(i);
  return ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 k_param_0" + params +
         ") {\n.reg .b32 %r<4>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [k_param_0];\nld.param.u32 %r1, [" +
         last +
         "];\nmov.u32 %r2, %ctaid.x;\nmul.wide.u32 %rd2, %r2, 4;\nadd.s64 %rd1, %rd1, %rd2;\n"
         "st.global.u32 [%rd1], %r1;\nret;\n}\n";
}

// A driver that gives the handle of a library's module to the module of the next library.
TEST_F(Images, AModuleOfALibraryIsForgottenWithIt) {
  static CUmodule latest;
  const auto again = reinterpret_cast<CUmodule>(&latest);
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto get_module = slots.cuLibraryGetModule;
  static const auto get_function = slots.cuModuleGetFunction;
  slots.cuLibraryGetModule = [](CUmodule* module, CUlibrary library) {
    const CUresult result = get_module(&latest, library);
    *module = reinterpret_cast<CUmodule>(&latest);
    return result;
  };
  slots.cuModuleGetFunction = [](CUfunction* f, CUmodule, const char* name) {
    return get_function(f, latest, name);
  };
  for (int n_words = 1; n_words <= 12; n_words++) {
    CUlibrary library = nullptr;
    CUmodule module = nullptr;
    ASSERT_EQ(
        hook_cuLibraryLoadData(&library, last_of(n_words).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        CUDA_SUCCESS);
    ASSERT_EQ(hook_cuLibraryGetModule(&module, library), CUDA_SUCCESS);
    ASSERT_EQ(module, again);
    const CUfunction f = function_of(module, "k");
    CUdeviceptr out = zeros(64);
    uint32_t words[12];
    void* params[13] = {&out};
    for (uint32_t i = 0; i < 12; i++) words[i] = 1000 + i, params[i + 1] = &words[i];
    EXPECT_GT(cut_of([&] { EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params), CUDA_SUCCESS); }), 1u);
    EXPECT_EQ(read(out, 64), std::vector<uint32_t>(64, words[n_words - 1])) << n_words;
    EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
    EXPECT_EQ(state::find_kernel(f), nullptr);
  }
  slots.cuLibraryGetModule = get_module;
  slots.cuModuleGetFunction = get_function;
}

// Its handles may be another kernel's in the next context. Those of a library stay.
TEST_F(Images, AModuleIsForgottenWithItsContext) {
  CUcontext other = nullptr;
  ASSERT_EQ(hook_cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  CUmodule module = nullptr, of_library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, last_of(1).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuLibraryLoadData(&library, last_of(2).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuLibraryGetModule(&of_library, library), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "k"), CUDA_SUCCESS);
  const CUfunction functions[] = {function_of(module, "k"), function_of(of_library, "k")};
  for (const CUfunction f : functions) EXPECT_NE(state::find_kernel(f), nullptr);
  EXPECT_EQ(hook_cuCtxDestroy_v2(other), CUDA_SUCCESS);
  for (const CUfunction f : functions) EXPECT_EQ(state::find_kernel(f), nullptr);
  EXPECT_EQ(track::variants_in(module) + track::variants_in(of_library), 0u);
  EXPECT_NE(state::find_kernel(reinterpret_cast<CUfunction>(kernel)), nullptr);
  EXPECT_EQ(track::variants_in(library), 1u);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

// While a thread unloads a module, another one loads the next, which has its handle.
TEST_F(Images, AnUnloadForgetsNoLoadThatHasItsHandleAlready) {
  static CUmodule module;
  ASSERT_EQ(hook_cuModuleLoadData(&module, last_of(1).c_str()), CUDA_SUCCESS);
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto kBefore = slots;
  slots.cuModuleUnload = [](CUmodule unloaded) {
    EXPECT_EQ(kBefore.cuModuleUnload(unloaded), CUDA_SUCCESS);
    return hook_cuModuleLoadData(&module, last_of(2).c_str());
  };
  slots.cuModuleLoadData = [](CUmodule* out, const void* image) {
    CUmodule next = nullptr;  // the handle is the test's; the driver's own one is never asked for again
    *out = module;
    return kBefore.cuModuleLoadData(&next, image);
  };
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  slots = kBefore;
  EXPECT_EQ(track::variants_in(module), 1u);
  track::image_unloaded(module, track::load_of(module));
  EXPECT_EQ(track::variants_in(module), 0u);
}

// A kernel that is listed without a name gets a handle that was another one's.
TEST_F(Images, AListedHandleIsNotTakenForTheKernelThatHadItBefore) {
  CUmodule first = nullptr, second = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&first, last_of(1).c_str()), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuModuleLoadData(&second, last_of(2).c_str()), CUDA_SUCCESS);
  static CUfunction again;
  again = function_of(first, "k");
  ASSERT_NE(state::find_kernel(again), nullptr);
  auto& slots = driver_api::mutable_real_for_tests();
  const auto before = slots;
  slots.cuModuleEnumerateFunctions = [](CUfunction* out, unsigned, CUmodule) {
    return *out = again, CUDA_SUCCESS;
  };
  slots.cuFuncGetName = [](const char**, CUfunction) { return CUDA_ERROR_NOT_SUPPORTED; };
  CUfunction listed = nullptr;
  EXPECT_EQ(hook_cuModuleEnumerateFunctions(&listed, 1, second), CUDA_SUCCESS);
  slots = before;
  EXPECT_EQ(listed, again);
  EXPECT_EQ(state::find_kernel(again), nullptr);
  for (const CUmodule module : {first, second}) EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// Also by way of a function the program comes to the module of a library, and sees nothing there that we added.
TEST_F(Images, TheModuleOfALibrarysFunctionShowsNothingOfOurs) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction f = nullptr;
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuLibraryLoadData(&library, last_of(1).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "k"), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuKernelGetFunction(&f, kernel), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuFuncGetModule(&module, f), CUDA_SUCCESS);
  unsigned n = 0;
  EXPECT_EQ(hook_cuModuleGetFunctionCount(&n, module), CUDA_SUCCESS);
  EXPECT_EQ(n, 1u);
  CUfunction listed[2] = {};
  const char* name = nullptr;
  ASSERT_EQ(hook_cuModuleEnumerateFunctions(listed, 2, module), CUDA_SUCCESS);
  EXPECT_EQ(listed[1], nullptr);
  ASSERT_EQ(real().cuFuncGetName(&name, listed[0]), CUDA_SUCCESS);
  EXPECT_STREQ(name, "k");
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

// nvcc keeps in a fat binary how its PTX is to be compiled. What is handed to the driver instead says the same, or products
// and sums would be fused that the program wanted apart.
TEST_F(Images, VariantsAreCompiledAsTheProgramWanted) {
  static std::vector<std::string> options;
  static const auto load = real().cuModuleLoadData;
  options.clear();
  auto& slots = driver_api::mutable_real_for_tests();
  slots.cuModuleLoadData = [](CUmodule* module, const void* image) {
    const auto entries = image::list_unsized(image);
    for (const image::Entry& entry : *entries) options.push_back(entry.options);
    return load(module, image);
  };
  for (const char* file :
       {"cut_ptx.fatbin", "cut_both.fatbin"}) {  // variants beside the originals; a sibling
    const auto bytes = bytes_of(file);
    auto entries = image::read({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size() - 1});
    ASSERT_TRUE(entries.ok());
    for (image::LoadedEntry& entry : *entries)
      if (entry.kind == image::EntryKind::kPtx) entry.options = " --fmad false ";
    const auto container = image::write_container(*entries);
    CUmodule module = nullptr;
    ASSERT_EQ(hook_cuModuleLoadData(&module, container->data()), CUDA_SUCCESS);
    const CUfunction f = function_of(module, "stamp");
    stamp(f);
    ASSERT_TRUE(test::eventually([] { return track::siblings_idle(); }));
    EXPECT_GT(stamp(f), 1u);
    ASSERT_FALSE(options.empty());
    EXPECT_EQ(options.back(), " --fmad false ") << file;
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  }
  slots.cuModuleLoadData = load;
}

// A device link of two translation units that the driver compiles: neither text alone is the module.
TEST_F(Images, TranslationUnitsAreNotTakenForTheModule) {
  const std::string second =
      ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry other() { ret; }\n";
  image::LoadedEntry first, other;
  first.kind = other.kind = image::EntryKind::kPtx;
  first.sm = other.sm = 90;
  const std::vector<char> text = bytes_of("cut.ptx");
  first.payload.assign(text.begin(), text.end());
  other.payload.assign(second.begin(), second.end());
  auto linked = image::write_container({}), a = image::write_container(std::vector{first}),
       b = image::write_container(std::vector{other});
  ASSERT_TRUE(linked && a && b);
  const image::Wrapper wrapper(*linked, {*a, *b});
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadFatBinary(&module, wrapper.image()), CUDA_SUCCESS);
  function_of(module, "other");
  EXPECT_EQ(stamp(function_of(module, "stamp")), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// The second load of a long text takes what the first one made of it; what is damaged is made anew.
TEST_F(Images, LongTextsAreRewrittenOnce) {
  namespace fs = std::filesystem;
  const fs::path folder = testing::TempDir() + "tessera-images-" + std::to_string(getpid());
  setenv("TESSERA_CACHE_DIR", folder.c_str(), 1);
  setenv("TESSERA_CACHE_MAX_MB", "256", 1);
  state::load_config();
  const std::string text = bytes_of("cut.ptx").data() + std::string("//") + std::string(64 << 10, '-');
  auto made = track::inspect(text.c_str(), nullptr);
  ASSERT_TRUE(made && !made->text.empty());
  int version = 0;
  ASSERT_EQ(real().cuDriverGetVersion(&version), CUDA_SUCCESS);
  const cache::Key key = cache::key_of(text, version);
  const cache::Store store(folder, 1 << 20);
  auto kept = cache::decode(*store.load(key));
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->text, made->text);

  const auto same = [&](const track::Image& image) {
    ASSERT_EQ(image.kernels.size(), made->kernels.size());
    for (size_t i = 0; i < image.kernels.size(); ++i) {
      const track::KernelFacts &a = image.kernels[i], &b = made->kernels[i];
      EXPECT_EQ(std::tie(a.name, a.n_params, a.param_bytes, a.origin_offset, a.has_variant, a.refusal,
                         a.resource_class),
                std::tie(b.name, b.n_params, b.param_bytes, b.origin_offset, b.has_variant, b.refusal,
                         b.resource_class));
    }
  };
  kept->text += "// kept";
  ASSERT_TRUE(store.save(key, cache::encode(*kept)).ok());
  auto again = track::inspect(text.c_str(), nullptr);
  EXPECT_EQ(again->text, made->text + "// kept");
  same(*again);
  fs::resize_file(folder / cache::file_name(key), 1000);
  again = track::inspect(text.c_str(), nullptr);
  EXPECT_EQ(again->text, made->text);
  same(*again);
  EXPECT_TRUE(store.load(key).ok());

  unsetenv("TESSERA_CACHE_DIR");
  unsetenv("TESSERA_CACHE_MAX_MB");
  state::load_config();
  fs::remove_all(folder);
}

TEST_F(Images, FilesAreCut) {
  for (const char* file : {"cut.ptx", "cut_ptx.fatbin"}) {
    CUmodule module = nullptr;
    ASSERT_EQ(hook_cuModuleLoad(&module, image_path(file).c_str()), CUDA_SUCCESS) << file;
    EXPECT_GT(stamp(function_of(module, "stamp")), 2u) << file;
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);

    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    ASSERT_EQ(hook_cuLibraryLoadFromFile(&library, image_path(file).c_str(), nullptr, nullptr, 0, nullptr,
                                         nullptr, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(hook_cuLibraryGetKernel(&kernel, library, "stamp"), CUDA_SUCCESS);
    EXPECT_GT(stamp(reinterpret_cast<CUfunction>(kernel)), 2u) << file;
    EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
  }
}

TEST_F(Images, FilesThatAreNoneGetTheDriversOwnAnswer) {
  CUmodule module = nullptr;
  const std::string missing = testing::TempDir() + "/no/such/file";
  EXPECT_EQ(hook_cuModuleLoad(&module, missing.c_str()), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(hook_cuModuleLoad(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  for (const char* contents : {"", "garbage", ".version 8.0\n.target sm_90\n.address_size 64\n.entry"}) {
    const std::string path = scratch_file(contents);
    EXPECT_EQ(hook_cuModuleLoad(&module, path.c_str()), drivers_word(path)) << contents;
    EXPECT_NE(hook_cuModuleLoad(&module, path.c_str()), CUDA_SUCCESS);
    unlink(path.c_str());
  }
  // Machine code only: nothing to cut, and what the driver says of it (the software GPU does not take it).
  const std::string cubin = image_path("cut.cubin");
  EXPECT_EQ(hook_cuModuleLoad(&module, cubin.c_str()), drivers_word(cubin));
  EXPECT_EQ(drivers_word(cubin), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_F(Images, AFileWhoseVariantTheDriverRefusesIsLoadedAsItIs) {
  static constinit int calls = 0;
  auto& slots = driver_api::mutable_real_for_tests();
  static auto loads = slots.cuModuleLoadData;
  slots.cuModuleLoadData = [](CUmodule*, const void*) {
    calls++;
    return CUDA_ERROR_INVALID_PTX;
  };
  CUmodule module = nullptr;
  EXPECT_EQ(hook_cuModuleLoad(&module, image_path("cut.ptx").c_str()), CUDA_SUCCESS);
  slots.cuModuleLoadData = loads;
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(stamp(function_of(module, "stamp")), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera
