// Readers of recordings, and the rules by which a recording becomes a program (docs/traces.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <streambuf>
#include <tuple>

#include "simulator/traces/csv.h"
#include "simulator/traces/kineto.h"
#include "simulator/traces/nsight.h"
#include "simulator/traces/pattern.h"
#include "simulator/traces/program.h"
#include "simulator/traces/read.h"
#include "simulator/traces/requests.h"

namespace tessera::simulator::traces {
namespace {

using testing::HasSubstr;

constexpr LaunchCosts kCosts{.launch_ns = 3'000, .gap_ns = 500, .sync_ns = 5'000};
constexpr char kColumns[] =
    "step,kind,launch_ts_us,launch_call_us,launch_call,start_us,duration_us,stream,grid_x,grid_y,grid_z,"
    "block_x,block_y,block_z,regs,smem_bytes,bytes,thread,name\n";

base::Result<Recording> csv(const std::string& rows) {
  std::istringstream text("# device: NVIDIA H100 80GB HBM3 (132 SMs)\n" + std::string(kColumns) + rows);
  return read_csv(text, "t.csv");
}

base::Result<Recording> kineto(const std::string& json) {
  std::istringstream text(json);
  return read_kineto(text, "t.json");
}

Reading on(const char* device, Use use = Use::kRequest) {
  return {.target = device_of_key(device), .costs = kCosts, .use = use};
}

std::vector<Segment> segments(const Workload& workload) {
  std::vector<Segment> all;
  for (const Step& step : workload.steps) all.insert(all.end(), step.segments.begin(), step.segments.end());
  return all;
}

TEST(Devices, AreThoseOfTheDescriptions) {
  for (const char* key : {"b200", "h200", "h100", "a100", "l4", "rtx4090", "rtx5090"}) {
    const auto described =
        profiles::load_gpu_description(std::string(TESSERA_SOURCE_DIR) + "/profiles/gpus/" + key + ".toml");
    ASSERT_TRUE(described.ok()) << described.error().text;
    const Device* device = device_of_key(key);
    ASSERT_NE(device, nullptr) << key;
    EXPECT_EQ(device_of_name(described->name), device) << described->name;
    EXPECT_EQ(device->sm.count, described->sm.count) << key;
    EXPECT_EQ(device->sm.max_threads, described->sm.max_threads) << key;
    EXPECT_EQ(device->sm.max_blocks, described->sm.max_blocks) << key;
    EXPECT_EQ(device->sm.registers, described->sm.registers) << key;
    EXPECT_EQ(device->sm.shared_bytes, described->sm.shared_bytes) << key;
    EXPECT_EQ(device->block.reserved_shared_bytes, described->block.reserved_shared_bytes) << key;
    EXPECT_DOUBLE_EQ(device->peak.fp32, described->peak.fp32) << key;
    EXPECT_DOUBLE_EQ(device->peak.tensor_fp16, described->peak.tensor_fp16) << key;
    EXPECT_DOUBLE_EQ(device->memory.bytes_per_s, described->memory.bytes_per_s) << key;
  }
}

TEST(Devices, KernelsAreScaledByWhatBoundsThem) {
  const Device &v100 = *device_of_key("v100"), &h100 = *device_of_key("h100");
  EXPECT_NEAR(length_factor(work_of("volta_sgemm_64x64_nt"), v100, h100), 15.7 / 67, 1e-9);
  EXPECT_NEAR(length_factor(work_of("volta_h884gemm_64x64"), v100, h100), 125 / 989.5, 1e-9);
  EXPECT_NEAR(length_factor(work_of("vectorized_elementwise_kernel"), v100, h100), 900.0 / 3350, 1e-9);
  EXPECT_EQ(length_factor(work_of("ncclKernel_AllReduce"), v100, h100), 1);
  EXPECT_NEAR(length_factor(work_of("odd"), v100, h100), 900.0 / 3350, 1e-9);
  EXPECT_NEAR(length_factor(work_of("odd"), h100, v100), 3350.0 / 900, 1e-9);
  EXPECT_EQ(length_factor(work_of("odd"), h100, h100), 1);
}

TEST(Csv, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(csv("0,kernel,0,3,l,x,5,7,1,1,1,32,1,1,16,0,,0,k\n").error().text,
              HasSubstr("t.csv:3: `start_us`"));
  EXPECT_THAT(csv("0,kernel,0,3,l,5\n0,odd,0,3,l,5,5\n").error().text, HasSubstr("t.csv:4: `kind` must be"));
  EXPECT_THAT(csv("0,kernel,0,3,l,,5\n").error().text, HasSubstr("needs `start_us`"));
  std::istringstream other("a,b\n1,2\n");
  EXPECT_THAT(read_csv(other, "o.csv").error().text, HasSubstr("o.csv:1: there is no column `kind`"));
  std::istringstream empty("");
  EXPECT_THAT(read_csv(empty, "e.csv").error().text, HasSubstr("no line of column names"));
}

TEST(Csv, QuotedNamesHaveCommas) {
  const auto r = csv("0,kernel,0,3,l,5,5,7,2,3,4,32,2,1,16,8,,0,\"k<1, \"\"2\"\">\"\n");
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->names.at(r->events.at(0).name), "k<1, \"2\">");
  EXPECT_EQ(r->events[0].blocks, 24u);
  EXPECT_EQ(r->events[0].threads_per_block, 64u);
}

// One event of each kind that is used, as a version of the profiler writes it.
std::string kineto_events(const std::string& times) {
  return R"({"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3"}],"traceEvents":[)"
         R"({"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":)" +
         times +
         R"(,"dur":20.5,"args":{"device":0,"stream":7,"correlation":5,"registers per thread":64,)"
         R"("shared memory":1024,"grid":[10,2,1],"block":[128,2,1],"bandwidth":-inf,"x":NaN}},)"
         R"({"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","ts":1623143093553095,"dur":4,)"
         R"("args":{"correlation":5}}]})";
}

TEST(Kineto, ReadsWholeAndFractionalTimes) {
  const auto r = kineto(kineto_events("1623143093553100.25"));
  ASSERT_TRUE(r.ok()) << r.error().text;
  ASSERT_EQ(r->events.size(), 1u);
  const Event& e = r->events[0];
  EXPECT_EQ(e.start_ns - e.call_ns, 5'250);
  EXPECT_EQ(e.length_ns, 20'500);
  EXPECT_EQ(e.blocks, 20u);
  EXPECT_EQ(e.threads_per_block, 256u);
  EXPECT_EQ(e.registers, 64u);
  EXPECT_EQ(e.shared_bytes, 1024u);
}

TEST(Kineto, AFileThatIsCutOffIsReadAsFarAsItGoes) {
  const std::string whole = kineto_events("1623143093553100");
  const auto r = kineto(whole.substr(0, whole.size() - 20));
  ASSERT_TRUE(r.ok()) << r.error().text;
  EXPECT_EQ(r->events.size(), 1u);
  EXPECT_EQ(r->events[0].call_ns, kNotRecorded);
  EXPECT_THAT(r->remarks.at(0), HasSubstr("cut off at byte"));
}

TEST(Kineto, MistakesAreNamedWithTheirByte) {
  EXPECT_THAT(kineto(R"({"traceEvents": [ }})").error().text, HasSubstr("t.json: byte 19: this is not JSON"));
  EXPECT_THAT(kineto(R"({"traceEvents": [)").error().text, HasSubstr("ends early"));
  EXPECT_THAT(kineto(R"({"otherData": {"format": "tessera trace 1"}, "traceEvents": []})").error().text,
              HasSubstr("tessera trace --from t.json --chakra t"));
  EXPECT_THAT(kineto("{}").error().text, HasSubstr("no `traceEvents`"));
  EXPECT_THAT(kineto(std::string(300, '[')).error().text, HasSubstr("nested"));
}

// `begin`, a megabyte of `filling` many times, `end`.
class Long : public std::streambuf {
 public:
  Long(std::string begin, char filling, std::string end)
      : parts_{std::move(begin), std::string(1 << 20, filling), std::move(end)} {}

 protected:
  int_type underflow() override {
    if (n_read_ == kMegabytes + 2) return traits_type::eof();
    std::string& part = parts_[n_read_ == 0 ? 0 : n_read_ <= kMegabytes ? 1 : 2];
    n_read_++;
    setg(part.data(), part.data(), part.data() + part.size());
    return traits_type::to_int_type(part[0]);
  }

 private:
  static constexpr int kMegabytes = 32;
  std::string parts_[3];
  int n_read_ = 0;
};

// As a file that is a few hundred kilobytes before it is unpacked may have them.
TEST(Kineto, LongTokensTakeNoMemory) {
  // The peak from now on: the kernel forgets what earlier tests had.
  std::ofstream("/proc/self/clear_refs") << 5;
  const auto peak_kib = [] {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word && word != "VmHWM:") {
    }
    long kib = 0;
    status >> kib;
    return kib;
  };
  const std::string event = R"({"ph":"X","cat":"kernel","ts":1,"dur":2,"args":{"grid":[1,1,1]},"name":"k)";
  const long before_kib = peak_kib();
  for (const auto& [begin, filling, end] :
       {std::tuple("{\"traceEvents\":[" + event + "\"}", ' ', "]}"),
        std::tuple("{\"traceEvents\":[" + event, 'n', "\\\"\"}]}"),
        std::tuple("{\"traceEvents\":[" + event + "\",\"x\":0.", '1', "}]}")}) {
    Long bytes(begin, filling, end);
    std::istream stream(&bytes);
    const auto r = read_kineto(stream, "t.json");
    ASSERT_TRUE(r.ok()) << r.error().text;
    ASSERT_EQ(r->events.size(), 1u);
    EXPECT_EQ(r->names.at(r->events[0].name), filling == 'n' ? "k" + std::string(511, 'n') : "k");
  }
  EXPECT_GT(before_kib, 0);
  EXPECT_LT(peak_kib() - before_kib, 24 << 10);
}

TEST(Kineto, OldCategoriesAndAListWithoutAFrame) {
  const auto r = kineto(
      R"([{"ph":"X","cat":"Kernel","name":"k","ts":10,"dur":2,"args":{"stream":7,"correlation":1}},)"
      R"({"ph":"X","cat":"Runtime","name":"cudaGraphLaunch","ts":1,"dur":2,"args":{"correlation":1}},)"
      R"({"ph":"X","cat":"Operator","name":"ProfilerStep#3","ts":0,"dur":20},)"
      "{\"ph\":\"X\",\"cat\":\"Runtime\",\"name\":\"cudaStreamSynchronize \xff\",\"ts\":3,\"dur\":9}]");
  ASSERT_TRUE(r.ok()) << r.error().text;
  ASSERT_EQ(r->events.size(), 2u);
  EXPECT_NE(r->events[0].graph, 0u);
  EXPECT_EQ(r->events[1].kind, EventKind::kWait);
  EXPECT_EQ(r->ranges.at(0).name, "ProfilerStep#3");
}

// Two processes on two GPUs, a wait, a copy to pageable memory, a graph that was traced as a whole.
TEST(Nsight, ReadsTheTablesOfAnExport) {
  const auto r = read_recording(TESSERA_CORPUS "/nsight/two_kernels.sqlite");
  ASSERT_TRUE(r.ok()) << r.error().text;
  ASSERT_EQ(r->events.size(), 6u);
  const Event &wait = r->events[0], &kernel = r->events[1], &copy = r->events[4], &graph = r->events[5];
  EXPECT_EQ(wait.kind, EventKind::kWait);
  EXPECT_EQ(wait.device, 0u);  // its process uses no other
  EXPECT_EQ(kernel.start_ns - kernel.call_ns, 5'000);
  EXPECT_EQ(kernel.blocks, 264u);
  EXPECT_EQ(kernel.shared_bytes, 17'408u);
  EXPECT_TRUE(copy.may_block);
  EXPECT_NE(graph.graph, 0u);
  EXPECT_THAT(r->remarks.at(0), HasSubstr("traced as a whole"));
  EXPECT_EQ(r->ranges.at(0).name, "step");
  Reading how = on("h100");
  how.range = "step";
  const auto p = program_of(*r, "p", how);
  ASSERT_TRUE(p.ok()) << p.error().text;
  EXPECT_EQ(p->workload.steps.size(), 3u);  // until the wait, until the copy, the graph
}

TEST(Nsight, SaysWhatADatabaseLacks) {
  std::istringstream no_tables(std::string("SQLite format 3\0", 16) + std::string(100, '\0'));
  EXPECT_FALSE(read_recording("/nowhere.sqlite").ok());
  EXPECT_THAT(read_nsight(no_tables, "n.sqlite").error().text, HasSubstr("n.sqlite: "));
  std::istringstream empty("");
  EXPECT_THAT(read_nsight(empty, "e.sqlite").error().text, HasSubstr("no table CUPTI_ACTIVITY_KIND_KERNEL"));
}

TEST(Program, HostTimeIsWhatIsBetweenLaunches) {
  // Two launches 50 us apart, one directly behind; a wait; one more.
  const auto r =
      csv("0,kernel,0,3,cudaLaunchKernel,5,10,7,264,1,1,128,1,1,32,0,,0,copy\n"
          "0,kernel,50,3,cudaLaunchKernel,55,100,7,264,1,1,128,1,1,32,0,,0,copy\n"
          "0,kernel,60,3,cudaLaunchKernel,155.5,10,7,264,1,1,128,1,1,32,0,,0,copy\n"
          "0,host_sync,70,102,cudaStreamSynchronize,,102,,,,,,,,,,,0,s\n"
          "0,kernel,200,3,cudaLaunchKernel,205,10,7,264,1,1,128,1,1,32,0,,0,copy\n");
  ASSERT_TRUE(r.ok()) << r.error().text;
  const auto p = program_of(*r, "p", on("h100"));
  ASSERT_TRUE(p.ok()) << p.error().text;
  ASSERT_EQ(p->workload.steps.size(), 2u);
  const auto all = segments(p->workload);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].host_ns, 2'000u);   // arrives 5 us after the job began, of which the call takes 3
  EXPECT_EQ(all[1].host_ns, 47'000u);  // 50 us between two calls
  EXPECT_EQ(all[2].host_ns, 7'000u);
  EXPECT_EQ(all[3].kernel.block_ns, 10'000u);
  EXPECT_EQ(p->workload.steps[0].gap_ns, 1'500u);  // returns 6.5 us after the work ended
  EXPECT_EQ(p->recorded_ns, 220'000u);
  EXPECT_NEAR(double(p->workload.alone_ns(132, kCosts)), 220'000, 10);
}

// Each letter is a launch, 10 us after the one before; a blank is a wait, after which the host pauses.
std::vector<Launched> launches(const std::string& text) {
  std::vector<Launched> out;
  int64_t now_ns = 0;
  bool waits = false;
  for (const char c : text) {
    now_ns += c == ' ' ? 90'000 : 10'000;
    if (c != ' ') out.push_back({uint64_t(c), now_ns, waits});
    waits = c == ' ';
  }
  return out;
}

TEST(Pattern, RequestsRepeatWithAWaitInEach) {
  EXPECT_THAT(repeated_pattern(launches("ababcd ababcd ababcd ababcd ")),
              testing::ElementsAre(0, 6, 12, 18, 24));
  // Recording began and ended in the middle of one.
  EXPECT_THAT(repeated_pattern(launches("cd ababcd ababcd ababcd ab")), testing::ElementsAre(2, 8, 14, 20));
  // Layers: nobody waits. Two: may be chance. One in four is another program.
  EXPECT_THAT(repeated_pattern(launches("abcabcabcabc ")), testing::IsEmpty());
  EXPECT_THAT(repeated_pattern(launches("abcd abcd ")), testing::IsEmpty());
  EXPECT_THAT(repeated_pattern(launches("abcd azyxwv abcd azyxwvutsr abcd ")), testing::IsEmpty());
  EXPECT_THAT(repeated_pattern({}), testing::IsEmpty());
}

TEST(Program, ARequestIsWhatRepeatsWhereNothingIsMarked) {
  std::string rows;
  for (int i = 0; i < 4; ++i) {
    const std::string at = std::to_string(i), length = i == 2 ? "70" : "30";
    rows += ",kernel," + at + "000,3,l," + at + "005,10,7,264,1,1,128,1,1,32,0,,0,copy\n";
    rows += ",kernel," + at + "010,3,l," + at + "015.5," + length + ",7,264,1,1,128,1,1,32,0,,0,gemm\n";
    rows += ",host_sync," + at + "020,90,s,,90,,,,,,,,,,,0,s\n";
  }
  const auto r = csv(rows);
  ASSERT_TRUE(r.ok()) << r.error().text;
  const auto p = program_of(*r, "p", on("h100"));
  ASSERT_TRUE(p.ok()) << p.error().text;
  EXPECT_THAT(p->inferred.at(0), HasSubstr("launches that repeat, with a wait in each: 4"));
  EXPECT_EQ(segments(p->workload).size(), 2u);
  Reading how = on("h100");
  how.range = "request";
  EXPECT_THAT(program_of(*r, "p", how).error().text,
              HasSubstr("no work in ranges whose names begin with `request`"));
}

TEST(Program, WidthFollowsFromTheShape) {
  // 64 registers of 1,024 threads: one block fills an SM's registers. 264 blocks are two waves.
  const auto r = csv("0,kernel,0,3,l,5,10,7,264,1,1,1024,1,1,64,0,,0,gemm\n");
  const auto p = program_of(*r, "p", on("h100"));
  ASSERT_TRUE(p.ok());
  const Kernel kernel = segments(p->workload)[0].kernel;
  EXPECT_EQ(kernel.sms_per_block, 1);
  EXPECT_EQ(kernel.n_blocks, 264u);
  EXPECT_EQ(kernel.block_ns, 5'000u);
  EXPECT_FALSE(kernel.can_cut);
  EXPECT_EQ(kernel.resource_class, policy::ResourceClass::kCompute);
}

TEST(Program, WorkOfOtherStreamsCountsWhereItIsAlone) {
  // A collective from 10 to 100 us beside kernels until 60: 40 us of it are alone.
  const auto r =
      csv("0,kernel,0,3,l,5,55,7,264,1,1,128,1,1,32,0,,0,copy\n"
          "0,kernel,4,3,l,10,90,20,2,1,1,512,1,1,32,0,,0,ncclKernel_AllReduce\n"
          "0,kernel,8,3,l,100,10,7,264,1,1,128,1,1,32,0,,0,copy\n");
  const auto p = program_of(*r, "p", on("h100", Use::kLoop));
  ASSERT_TRUE(p.ok());
  const auto all = segments(p->workload);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_NEAR(double(all[1].kernel.solo_ns(132)), 40'000, 1'000);
  EXPECT_LT(all[1].kernel.sms_per_block, 0.1);
}

TEST(Program, LaunchesOfAGraphAreOneCall) {
  const auto r =
      csv("0,kernel,0,3,cudaGraphLaunch,5,10,7,264,1,1,128,1,1,32,0,,0,a\n"
          "0,kernel,0,3,cudaGraphLaunch,15,10,7,264,1,1,128,1,1,32,0,,0,b\n"
          "0,kernel,40,3,cudaGraphLaunch,45,10,7,264,1,1,128,1,1,32,0,,0,a\n");
  const auto p = program_of(*r, "p", on("h100"));
  ASSERT_TRUE(p.ok());
  const auto all = segments(p->workload);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_TRUE(!all[0].joins && all[1].joins && !all[2].joins);
}

TEST(Program, SaysWhatARecordingLacks) {
  std::istringstream text(std::string(kColumns) + "0,kernel,0,3,l,5,10,7,1,1,1,32,1,1,16,0,,0,k\n");
  const auto r = read_csv(text, "t.csv");
  ASSERT_TRUE(r.ok());
  EXPECT_THAT(program_of(*r, "p", on("h100")).error().text, HasSubstr("does not say on which GPU"));
  Reading how = on("h100");
  how.source = device_of_key("a100");
  EXPECT_TRUE(program_of(*r, "p", how).ok());
  EXPECT_THAT(program_of(*csv("0,host_sync,0,3,s,,3\n"), "p", how).error().text,
              HasSubstr("no work of the GPU"));
}

// Requests of a language model.
TEST(Requests, AreReadByTheirColumns) {
  const std::string path = testing::TempDir() + "requests.csv";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_requests(path);
  };
  const std::string header = "# source: somebody\narrival_s,context_tokens,other,generated_tokens\n";
  const auto good = read(header + "0,100,x,10\n1.5,7,,0\r\n");
  ASSERT_TRUE(good.ok()) << good.error().text;
  EXPECT_THAT(good->gaps_ns, testing::ElementsAre(1.5e9));
  EXPECT_EQ(good->lengths[0].prompt, 100u);
  EXPECT_EQ(good->lengths[1].output, 1u);  // a request has one token at least
  const std::pair<std::string, const char*> kWrong[] = {
      {"arrival_s,input_tokens\n0,1\n", ":1: the header"},
      {header + "0,1,x\n", ":3: it has another number of columns"},
      {header + "0,many,x,1\n", ":3: `many`"},
      {header + "0,-1,x,1\n", ":3: `-1`"},
      {header + "2,1,x,1\n1,1,x,1\n", ":4: it arrived before"},
      {header + "0,1,x,1\n", "no two requests"},
      {header + std::string(10'000, '1') + "\n", ":3: the line is too long"}};
  for (const auto& [text, what] : kWrong) {
    const auto bad = read(text);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_THAT(bad.error().text, HasSubstr(what));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tessera::simulator::traces
