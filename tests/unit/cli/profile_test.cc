// `tessera profile`: what it makes of trace files, and of a program on the software GPU. The figures expected
// of batch_trainer are counted by hand from kernels/samples/*.cu.
#include "cli/measure/profile.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/measure/calibrate.h"
#include "profiles/profile_file.h"
#include "softgpu/timing/engine.h"

namespace tessera::cli {
namespace {

using profiles::Class;
using profiles::KernelProfile;
using profiles::Profile;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kHeader[] =
    "kind,name,start_ns,end_ns,code,blocks,threads_per_block,registers_per_thread,shared_bytes_per_block,"
    "warp_instructions_per_block,global_bytes_per_block,tensor_operations_per_block,fp64_operations_per_"
    "block,"
    "fp32_operations_per_block,fp16_operations_per_block,image_hash,block_x,block_y,block_z,"
    "dynamic_shared_bytes\n";

class ProfileTrace : public testing::Test {
 protected:
  ProfileTrace() {
    char folder[] = "/tmp/tessera-profile-test-XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    auto gpu = profiles::load_gpu_description(TESSERA_SOURCE_DIR "/profiles/gpus/test4.toml");
    EXPECT_TRUE(gpu.ok());
    gpu_ = *gpu;
  }
  ~ProfileTrace() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string folder_;
  profiles::GpuDescription gpu_;
};

TEST_F(ProfileTrace, SumsUpKernelsByKey) {
  const std::string shape = "10,256,32,2048,100,64,0,0,512,0,0x00000000000000ff,64,4,1,1024\n";
  write("softgpu-1.csv", kHeader + ("kernel,k,1000,3000,0," + shape) +
                             "copy,copy,1,2,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n" + "kernel,k,5000,9000,0," +
                             shape + "kernel,k,5000,9000,719," + shape);                  // failed
  write("softgpu-2.csv", kHeader + ("kernel,k,1,3001,0," + shape) + "kernel,k,1,99999");  // cut off
  write("softgpu-2.json", "{}");
  Profile out;
  auto n = add_traces(folder_, {gpu_}, "driver", out);
  ASSERT_TRUE(n.ok()) << n.error().text;
  EXPECT_EQ(*n, 2u);
  ASSERT_EQ(out.kernels.size(), 1u);
  const auto& [key, record] = *out.kernels.begin();
  EXPECT_EQ(key.image_hash, 0xffu);
  EXPECT_EQ(key.block, (std::array<uint32_t, 3>{64, 4, 1}));
  EXPECT_EQ(key.dynamic_shared_bytes, 1024u);
  EXPECT_EQ(key.gpu, "Tessera Test GPU 4");
  EXPECT_EQ(record.duration.samples, 3u);
  EXPECT_DOUBLE_EQ(record.duration.total_ns, 9000);
  EXPECT_DOUBLE_EQ(record.memory_bytes, 640);
  EXPECT_DOUBLE_EQ(record.warp_instructions, 1000);
  EXPECT_EQ(record.operations, (std::map<std::string, double>{{"fp32", 5120}}));
  EXPECT_DOUBLE_EQ(record.occupancy, 1.0);  // 8 blocks of 256 threads
  const std::string table = top_kernels(out, 5);
  EXPECT_THAT(table, HasSubstr("100.0%"));
  EXPECT_THAT(table, HasSubstr("8.00"));  // 5120 operations over 640 bytes
}

// The files of the injected library: one per process, notes of those that could not collect.
TEST_F(ProfileTrace, ProcessesOfARealGpuAreMerged) {
  Profile one;
  profiles::KernelKey key;
  key.kernel = "k";
  key.gpu = "NVIDIA H100 80GB HBM3";
  one.kernels[key].duration.add(1000, 3);
  one.unknown_fields = R"({"activity": {"dropped": 1}})";
  ASSERT_TRUE(profiles::save_profile(one, folder_ + "/collected-11.json").ok());
  key.gpu = "NVIDIA L4";  // this process used another GPU
  one.kernels[key].duration.add(500, 1);
  ASSERT_TRUE(profiles::save_profile(one, folder_ + "/collected-12.json").ok());
  write("note-13.txt", "another profiler is attached\n");
  Profile out;
  testing::internal::CaptureStderr();
  auto n = add_collected(folder_, out);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("another profiler is attached"));
  ASSERT_TRUE(n.ok()) << n.error().text;
  EXPECT_EQ(*n, 2u);
  ASSERT_EQ(out.kernels.size(), 2u);
  EXPECT_EQ(out.kernels.begin()->second.duration.samples, 6u);
  EXPECT_EQ(out.unknown_fields, "");
  write("collected-14.json", "{");
  EXPECT_FALSE(add_collected(folder_, out).ok());
}

TEST(TopKernels, SaysHowMuchCanBeCut) {
  profiles::Profile profile;
  EXPECT_THAT(top_kernels(profile, 1), Not(HasSubstr("can be cut")));
  const auto kernel = [&](const char* name, uint64_t samples, profiles::Cut cut, const char* reason) {
    profiles::KernelProfile& record = profile.kernels[{.kernel = name}];
    record.duration.add(1000, samples);
    record.cut = cut;
    record.cut_reason = reason;
  };
  kernel("a", 60, profiles::Cut::kYes, "");
  kernel("b", 10, profiles::Cut::kNo, "grid_sync");
  kernel("c", 30, profiles::Cut::kUnknown, "");
  EXPECT_THAT(top_kernels(profile, 1), EndsWith("\ncan be cut: 60% of 100 launches, 60% of their time; in "
                                                "the way: 30% no PTX for it, 10% grid_sync\n"));
}

TEST(TopKernels, NamesArePrintable) {
  profiles::Profile profile;
  profile.kernels[{.kernel = "\x1b[2Jk"}].cut_reason = "\x07";
  const std::string text = top_kernels(profile, 1);
  EXPECT_THAT(text, HasSubstr("\\x1b[2Jk"));
  EXPECT_EQ(text.find_first_of("\x1b\x07"), std::string::npos);
}

TEST_F(ProfileTrace, BadTracesAreNamed) {
  const std::string shape = ",10,256,32,2048,100,64,0,0,512,0,0x0f,64,4,1,1024\n";
  const struct {
    std::string text;
    const char* message;
  } rows[] = {
      {"kind,name\nkernel,k\n", "there is no column"},
      {kHeader + std::string("kernel,k,1,2\n"), "has 4 cells, not 20"},
      {kHeader + ("kernel,k,one,2,0" + shape), "'one' in column 'start_ns'"},
      {kHeader + std::string("kernel,k,1,2,0,10,256,32,2048,nan,64,0,0,512,0,0x0f,64,4,1,1024\n"), "'nan'"},
  };
  for (const auto& row : rows) {
    const std::string path = write("softgpu-1.csv", row.text);
    Profile out;
    auto added = add_trace(path, gpu_, "driver", out);
    ASSERT_FALSE(added.ok()) << row.message;
    EXPECT_THAT(added.error().text, HasSubstr(path + ":2: "));
    EXPECT_THAT(added.error().text, HasSubstr(row.message));
    EXPECT_TRUE(out.kernels.empty());
  }
}

// ---- the command itself, on real programs

class ProfileCommand : public ProfileTrace {
 protected:
  int run(const std::string& arguments) {
    const std::string command =
        "cd '" + folder_ + "' && '" TESSERA_BIN "' profile " + arguments + " > out.txt 2> err.txt";
    const int status = system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string text(const std::string& name) {
    std::stringstream out;
    out << std::ifstream(folder_ + "/" + name).rdbuf();
    return out.str();
  }
  // p.json as every plot in both formats, by one interpreter: most of its time is the import.
  void plots_are_drawn() {
    const std::string program =
        "import runpy, sys\n"
        "scripts, gpu = sys.argv[1:]\n"
        "sys.path.insert(0, scripts)\n"
        "for name, given in (('plot_profile', ['p.json']), ('plot_roofline', ['p.json', gpu]),\n"
        "                    ('compare_profiles', ['p.json', 'p.json', '--old-gpu', 'test gpu'])):\n"
        "  for form in ('png', 'svg'):\n"
        "    sys.argv = [name, *given[:2], name + '.' + form, *given[2:]]\n"
        "    runpy.run_path(f'{scripts}/{name}.py', run_name='__main__')\n";
    write("draw.py", program);
    ASSERT_EQ(system(("cd '" + folder_ +
                      "' && /usr/bin/python3 draw.py '" TESSERA_SOURCE_DIR "/scripts' '" TESSERA_SOURCE_DIR
                      "/profiles/gpus/test4.toml' > said.txt 2>&1")
                         .c_str()),
              0)
        << text("said.txt");
    for (const char* name : {"plot_profile", "plot_roofline", "compare_profiles"}) {
      EXPECT_THAT(text(std::string(name) + ".png"), testing::StartsWith("\x89PNG"));
      EXPECT_THAT(text(std::string(name) + ".svg"), HasSubstr("</svg>"));
    }
    EXPECT_THAT(text("said.txt"), HasSubstr("old: Tessera Test GPU 4\nnew: Tessera Test GPU 4\n"));
  }
  const KernelProfile* find(const Profile& profile, const std::string& part) {
    for (const auto& [key, record] : profile.kernels)
      if (key.kernel.find(part) != std::string::npos) return &record;
    ADD_FAILURE() << "no kernel " << part;
    return nullptr;
  }
  profiles::KernelKey key_of(const Profile& profile, const std::string& part) {
    for (const auto& [key, record] : profile.kernels)
      if (key.kernel.find(part) != std::string::npos) return key;
    return {};
  }
};

TEST_F(ProfileCommand, ExitStatusIsTheProgramsAndNoUseOfTheGpuIsSaid) {
  EXPECT_EQ(run("--gpu soft -- sh -c 'exit 7'"), 7);
  EXPECT_EQ(run("--gpu soft -- sh -c 'kill -9 $$'"), 137);
  EXPECT_EQ(run("--gpu soft -- /nonexistent/program"), 127);
  EXPECT_EQ(run("--gpu soft -- true"), 3);
  EXPECT_THAT(text("err.txt"), HasSubstr("did not use the GPU"));
  EXPECT_EQ(run("--gpu soft --seconds 0.2 -- sleep 100"), 128 + 15);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/tessera-profile.json"));
}

// A program of two processes: one calls a cuBLAS that is a stand-in, the other uses the GPU. All processes
// count into one table, and a second run adds to the file. It calls every function that is known: all rows are printed.
TEST_F(ProfileCommand, LibraryCallsAreCountedByShape) {
  const std::string words =
      "--gpu soft --top 1000 -o p.json -- sh -c '" TESSERA_LOADER "/rpath && " TESSERA_LOADER
      "/rpath && " TESSERA_TRAINER " --preset soft --steps 1'";
  ASSERT_EQ(run(words), 0) << text("err.txt");
  auto once = profiles::load_profile(folder_ + "/p.json");
  ASSERT_TRUE(once.ok()) << once.error().text;
  const auto single = once->operations.find({"cublasSgemm_v2", "6x7x8", "f32"});
  ASSERT_NE(single, once->operations.end()) << text("p.json");
  EXPECT_EQ(single->second.calls, 4u);  // two processes, two widths of integers
  EXPECT_EQ(single->second.flop, 4u * 2 * 6 * 7 * 8);
  EXPECT_EQ(single->second.bytes, 4u * 4 * (6 * 8 + 8 * 7 + 2 * 6 * 7));
  // 672 FLOP at 1.536 GFLOP/s, 752 bytes at 0.4 GB/s.
  EXPECT_EQ(single->second.bound, Class::kMemory);
  EXPECT_NEAR(single->second.at_least_ns, 4 * 752 / 0.4, 1);
  EXPECT_EQ(once->operations.count({"cublasGemmEx", "6x7x8", "f16"}), 1u);
  EXPECT_EQ(once->operations.count({"cublasSgemmStridedBatched", "6x7x8 * 20", "f32"}), 1u);
  EXPECT_THAT(text("err.txt"), HasSubstr("OPERATION"));
  EXPECT_THAT(text("err.txt"), HasSubstr("17 groups"));
  EXPECT_THAT(text("p.json"), HasSubstr("\"share\""));
  ASSERT_EQ(run(words), 0) << text("err.txt");
  auto twice = profiles::load_profile(folder_ + "/p.json");
  ASSERT_TRUE(twice.ok());
  EXPECT_EQ(twice->operations.at(single->first).calls, 8u);
}

// Not after the program has run for hours.
TEST_F(ProfileCommand, AnOutputThatCannotBeWrittenIsSaidBeforeTheProgramRuns) {
  write("notes.txt", "not a profile");
  for (const std::string output : {"/dev/full", "/nonexistent/p.json", "/proc/p.json"})
    EXPECT_EQ(run("--gpu soft -o " + output + " -- touch " + folder_ + "/ran"), 2) << output;
  EXPECT_EQ(run("--gpu soft -o " + folder_ + "/notes.txt -- touch " + folder_ + "/ran"), 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ran"));
}

TEST_F(ProfileCommand, RealGpuIsNotPretended) {
  EXPECT_EQ(run("-- true"), 2);
  EXPECT_THAT(text("err.txt"), HasSubstr("--gpu soft"));
}

TEST_F(ProfileCommand, LatencyServiceIsWhatItsSourceSays) {
  constexpr double kRows = 224, kWidth = 64, kCount = kRows * kWidth;  // features, hidden and classes
  // The toolkit's functions, from their PTX. expf: 2^k by four multiply-adds and a sum, ex2, a product. tanhf
  // computes both of its branches: product, ex2, sum, reciprocal and multiply-add; a square and five
  // multiply-adds.
  constexpr double kExp = 4 * 2 + 1 + 1 + 1, kTanh = 1 + 1 + 1 + 1 + 2 + 1 + 5 * 2;
  ASSERT_EQ(run("--gpu soft -o p.json -- '" TESSERA_SERVICE "' --preset soft --requests 6 --rate 100"), 0)
      << text("err.txt");
  auto profile = profiles::load_profile(folder_ + "/p.json");
  ASSERT_TRUE(profile.ok()) << profile.error().text;
  const struct {
    const char* kernel;
    double bytes, operations;
    Class bound;
  } rows[] = {
      {"gemm", kCount / (32 * 16) * (32 * kWidth + kWidth * 16 + 32 * 16) * 4, 2 * kCount * kWidth,
       Class::kCompute},
      // x, bias, x again. A sum, x / 2, the argument (4, a multiply-add among them, and 1), tanhf, a sum and
      // a product.
      {"bias_gelu", kCount * 3 * 4, kCount * (1 + 1 + 4 + 1 + kTanh + 1 + 1), Class::kMemory},
      // Reads three times, writes twice. Per element a difference, expf, a sum, a product; per row two trees
      // of 5, of which maxima are none, and a reciprocal, in 32 lanes.
      {"softmax", kCount * 5 * 4, kCount * (1 + kExp + 1 + 1) + kRows * 32 * (5 + 1), Class::kMemory},
      // x and weight; one float (a sector) per row. A product and a sum per element, a tree of 5 in 32 lanes.
      {"weighted_sum", kCount * 2 * 4 + kRows * 32, kCount * 2 + kRows * 32 * 5, Class::kMemory},
  };
  for (const auto& row : rows) {
    const KernelProfile* record = find(*profile, row.kernel);
    ASSERT_NE(record, nullptr);
    EXPECT_NEAR(record->memory_bytes / row.bytes, 1, 0.05) << row.kernel;
    EXPECT_NEAR(record->operations.at("fp32") / row.operations, 1, 0.05) << row.kernel;
    EXPECT_EQ(record->bound, row.bound) << row.kernel << ": " << record->bound_reason;
    EXPECT_EQ(record->cut, profiles::Cut::kYes) << row.kernel << ": " << record->cut_reason;
  }
}

// Nothing can be counted here: alone, beside memory work, beside arithmetic, both on the modelled device at once.
TEST_F(ProfileCommand, SensitivityClassesWithoutCounters) {
  EXPECT_EQ(run("--gpu soft --sensitivity --metrics -- true"), 2);
  ASSERT_EQ(run("--gpu soft --sensitivity -o p.json -- '" TESSERA_TRAINER
                "' --preset soft --checksum-steps 1 --steps 4"),
            0)
      << text("err.txt");
  auto profile = profiles::load_profile(folder_ + "/p.json");
  ASSERT_TRUE(profile.ok()) << profile.error().text;
  const KernelProfile *gemm = find(*profile, "gemm"), *update = find(*profile, "update");
  ASSERT_TRUE(gemm && update);
  EXPECT_EQ(gemm->work_samples, 0u);
  EXPECT_EQ(gemm->duration.samples, 8u);  // of the run alone
  EXPECT_EQ(gemm->bound, Class::kCompute) << gemm->bound_reason;
  EXPECT_GT(gemm->slowdown_beside_compute, 1.2 * gemm->slowdown_beside_memory);
  // At the limit of both on this device: 100 % of the bandwidth, 94 % of the issue slots.
  EXPECT_GT(update->slowdown_beside_memory, 1.4);
  EXPECT_THAT(text("err.txt"), HasSubstr("beside a neighbour bound by compute"));
}

TEST_F(ProfileCommand, InstallPutsItWhereTheDaemonLooks) {
  setenv("TESSERA_PROFILES", (folder_ + "/kept").c_str(), 1);
  EXPECT_EQ(run("--install -o p.json"), 3);
  EXPECT_THAT(text("err.txt"), HasSubstr("cannot read p.json"));
  EXPECT_EQ(run("-o p.json"), 2);  // neither a command nor something to install
  EXPECT_EQ(run("--gpu soft --install -o p.json -- '" TESSERA_TRAINER
                "' --preset soft --checksum-steps 1 --steps 3"),
            0)
      << text("err.txt");
  setenv("TESSERA_PROFILES", "off", 1);
  auto installed = profiles::load_profile(folder_ + "/kept/installed-p.json");
  ASSERT_TRUE(installed.ok()) << installed.error().text;
  EXPECT_EQ(installed->kernels.size(), 5u);
  EXPECT_EQ(run("--install -o p.json"), 2);  // off: nowhere to install to
}

TEST_F(ProfileTrace, CalibrationFindsWhatTheModelWasGiven) {
  const auto calibrated = [&](const char* environment) {
    EXPECT_EQ(system((environment + (" '" TESSERA_BIN "' calibrate --gpu soft -o '" + folder_) +
                      "/c.toml' 2> '" + folder_ + "/err.txt'")
                         .c_str()),
              0);
    return profiles::load_gpu_description(folder_ + "/c.toml");
  };
  auto measured = calibrated("");
  ASSERT_TRUE(measured.ok()) << measured.error().text;
  EXPECT_EQ(measured->name, gpu_.name);
  EXPECT_EQ(measured->sm.count, gpu_.sm.count);
  EXPECT_NEAR(measured->peak.fp32 / gpu_.peak.fp32, 1, 0.08);  // loops and addresses take slots too
  EXPECT_NEAR(measured->peak.fp64 / gpu_.peak.fp64, 1, 0.08);
  // A CPU that is busy with other things gets less far with these: smaller launches, in which fixed costs
  // weigh more.
  EXPECT_NEAR(measured->peak.fp16 / gpu_.peak.fp16, 0.7, 0.35);
  EXPECT_NEAR(measured->peak.tensor_fp16 / gpu_.peak.tensor_fp16, 0.8, 0.4);

  // A CPU that is late with launches lengthens what they seem to cost; on a device that is slower by this factor that
  // weighs that much less.
  constexpr double kStretch = 20;
  auto slow = calibrated("TESSERA_SOFTGPU_STRETCH=20");
  ASSERT_TRUE(slow.ok()) << slow.error().text;
  EXPECT_NEAR(kStretch * slow->memory.bytes_per_s / gpu_.memory.bytes_per_s, 1, 0.02);
  EXPECT_NEAR(kStretch * slow->transfer.h2d_bytes_per_s / gpu_.transfer.h2d_bytes_per_s, 1, 0.02);
  EXPECT_NEAR(kStretch * slow->transfer.d2h_bytes_per_s / gpu_.transfer.d2h_bytes_per_s, 1, 0.02);
  EXPECT_NEAR(slow->time.launch_overhead_ns / kStretch / gpu_.time.launch_overhead_ns, 1, 0.25);
  // The model adds nothing else.
  EXPECT_NEAR(slow->time.slice_ns / kStretch / gpu_.time.launch_overhead_ns, 1, 0.5);
}

TEST(Calibrate, FiguresThatMakeNoSenseAreRefused) {
  for (const char* text : {"", "[]", "{}", "{\"name\": \"x\"}", "{\"name\": \"x\", \"sms\": -1}"})
    EXPECT_FALSE(description_of(text, nullptr).ok()) << text;
}

TEST_F(ProfileCommand, BatchTrainerIsWhatItsSourceSays) {
  constexpr double kM = 640, kN = 256, kK = 32, kParameters = 65536, kCount = kM * kN;
  constexpr int kSteps = 4;
  ASSERT_EQ(run("--gpu soft -o p.json -- sh -c '\"" TESSERA_TRAINER
                "\" --preset soft --checksum-steps 2 --steps 4'"),  // the trainer is a child of the command
            0)
      << text("err.txt");
  auto profile = profiles::load_profile(folder_ + "/p.json");
  ASSERT_TRUE(profile.ok()) << profile.error().text;
  ASSERT_EQ(profile->kernels.size(), 5u) << text("err.txt");
  const struct {
    const char* kernel;
    uint64_t calls;  // per step
    double bytes, operations;
    Class bound;
  } rows[] = {
      // A block makes 32x16 of C: reads 32 rows of A and 16 columns of B, k long each, and writes its tile.
      {"gemm", 2, kCount / (32 * 16) * (32 * kK + kK * 16 + 32 * 16) * 4, 2 * kCount * kK, Class::kCompute},
      // Reads x and bias, writes x; one addition, one product.
      {"activate", 1, kCount * 3 * 4, kCount * 2, Class::kMemory},
      // Reads parameter, momentum, gradient, writes two; loss[0] is one 32-byte sector per warp. Three
      // products and two sums for m, two products and a difference for the parameter.
      {"update", 1, kParameters * 5 * 4 + kParameters / 32 * 32, kParameters * 8, Class::kMemory},
      // Reads x once, writes one float (a sector) per 1024. Per block one addition per element, five per
      // thread of 128 in the warps' trees, three for the four warps.
      {"6reduceE", 1, kCount * 4 + kCount / 1024 * 32, kCount + kCount / 1024 * (128 * 5 + 3),
       Class::kMemory},
  };
  for (const auto& row : rows) {
    const KernelProfile* record = find(*profile, row.kernel);
    ASSERT_NE(record, nullptr);
    EXPECT_EQ(record->duration.samples, row.calls * kSteps) << row.kernel;
    EXPECT_NEAR(record->memory_bytes / row.bytes, 1, 0.05) << row.kernel;
    EXPECT_NEAR(record->operations.at("fp32") / row.operations, 1, 0.05) << row.kernel;
    EXPECT_EQ(record->bound, row.bound) << row.kernel << ": " << record->bound_reason;
    EXPECT_EQ(record->cut, profiles::Cut::kYes) << row.kernel << ": " << record->cut_reason;
  }
  // One block on a device of many cannot be bound by throughput.
  EXPECT_EQ(find(*profile, "finish_loss")->bound, Class::kLatency);
  // Durations are those of the model: the same work put to a model of this process takes the same time. Not
  // the first launch of a kernel, whose cost the model learns while it runs.
  auto engine = softgpu::timing::Engine::local(gpu_.path, "timesliced");
  ASSERT_TRUE(engine.ok()) << engine.error().text;
  for (const auto& row : rows) {
    const KernelProfile* r = find(*profile, row.kernel);
    softgpu::timing::OpSpec spec;
    spec.kind = softgpu::timing::OpKind::kKernel;
    spec.n_blocks = uint64_t(r->n_blocks);
    const auto& block = key_of(*profile, row.kernel).block;
    spec.threads_per_block = block[0] * block[1] * block[2];
    spec.registers_per_thread = r->registers_per_thread;
    spec.shared_bytes_per_block = r->shared_bytes_per_block;
    spec.work_known = true;
    spec.work.warp_instructions = r->warp_instructions / r->n_blocks;
    spec.work.global_bytes = r->memory_bytes / r->n_blocks;
    spec.work.fp32_operations = r->operations.at("fp32") / r->n_blocks;
    const auto op = (*engine)->submit(spec);
    (*engine)->wait(op);
    const auto times = (*engine)->times(op);
    const double modelled = double(times.end_ns - times.start_ns);
    constexpr double kBucket = 1.0 / 32;  // of the histogram
    EXPECT_NEAR(double(r->duration.quantile_ns(0.5)) / modelled, 1, kBucket) << row.kernel;
    EXPECT_NEAR(double(r->duration.min_ns) / modelled, 1, 0.002) << row.kernel;
  }
  EXPECT_THAT(text("err.txt"), HasSubstr("samples::gemm"));
  EXPECT_THAT(text("out.txt"), HasSubstr("checksum="));  // the program's output is its own

  plots_are_drawn();

  // A second run adds up; a broken file is left alone.
  ASSERT_EQ(run("--gpu soft -o p.json -- '" TESSERA_TRAINER "' --preset soft --checksum-steps 1 --steps 1"),
            0);
  EXPECT_EQ(find(*profiles::load_profile(folder_ + "/p.json"), "gemm")->duration.samples, 2u * (kSteps + 1));
  write("p.json", "{");
  EXPECT_EQ(run("--gpu soft -o p.json -- '" TESSERA_TRAINER "' --preset soft --checksum-steps 1 --steps 1"),
            2);
  EXPECT_THAT(text("err.txt"), HasSubstr("p.json: is not JSON"));
  EXPECT_EQ(text("p.json"), "{");
}

}  // namespace
}  // namespace tessera::cli
