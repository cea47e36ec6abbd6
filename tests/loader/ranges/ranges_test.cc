// libtessera_ranges.so as NVTX loads it into a program, which stands for libtessera.so, too. TS_SECOND_TOOL: with another tool
// that was to be loaded.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "interpose/ranges/contract.h"
#include "interpose/ranges/match.h"
#include "interpose/ranges/names.h"
#include "tests/loader/ranges/second_tool.h"

namespace tessera::test {
namespace {

// The calls about requests, as words.
std::mutex g_lock;
std::vector<std::string> g_said;
std::map<uint32_t, std::string> g_kinds;
uint64_t g_requests = 0;

void say(const std::string& what) {
  const std::lock_guard lock(g_lock);
  g_said.push_back(what);
}

uint32_t kind(const char* name, uint32_t yields) noexcept {
  const std::lock_guard lock(g_lock);
  g_kinds[uint32_t(g_kinds.size() + 1)] = std::string(name) + (yields ? ", which yields" : "");
  return uint32_t(g_kinds.size());
}
uint64_t begin(uint32_t kind, uint32_t of_thread) noexcept {
  const std::lock_guard lock(g_lock);
  g_said.push_back((of_thread ? "begin " : "begin of all ") + g_kinds[kind]);
  return ++g_requests;
}
void end(uint64_t request) noexcept {
  say("end " + std::to_string(request));
}
void drop(uint64_t request) noexcept {
  say("drop " + std::to_string(request));
}

constexpr ranges::RequestSide kSide = {kind, begin, end, drop};

class Ranges : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("NVTX_INJECTION64_PATH", TS_RANGES, 1);
    setenv("TESSERA_REQUEST_RANGES", "decode\n\nengine/prefill\ncategory:steps\nwörld *", 1);
    setenv("TESSERA_YIELD_RANGES", "decode\nbackground", 1);
#ifdef TS_SECOND_TOOL
    setenv("TESSERA_NVTX_TOOL", TS_SECOND_TOOL, 1);
#endif
  }
  void SetUp() override {
    g_said.clear();
    g_requests = 0;
  }
  static void expect_said(const std::vector<std::string>& said) {
    EXPECT_EQ(g_said, said);
  }
  static nvtxEventAttributes_t event() {
    nvtxEventAttributes_t e{};
    e.version = NVTX_VERSION;
    e.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    return e;
  }
  static nvtxEventAttributes_t event(const char* text) {
    nvtxEventAttributes_t e = event();
    e.messageType = NVTX_MESSAGE_TYPE_ASCII;
    e.message.ascii = text;
    return e;
  }
  static nvtxEventAttributes_t event(nvtxStringHandle_t registered) {
    nvtxEventAttributes_t e = event();
    e.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    e.message.registered = registered;
    return e;
  }
};

TEST_F(Ranges, PushAndPopAreRequestsOfTheThread) {
  nvtxRangePushA("decode");
  nvtxRangePushA("something else");
  nvtxRangePop();
  expect_said({"begin decode"});
  nvtxRangePop();
  nvtxRangePop();  // one too many
  expect_said({"begin decode", "end 1"});
}

TEST_F(Ranges, StartAndEndAreRequestsOfTheProcess) {
  const nvtxRangeId_t other = nvtxRangeStartA("something else"), range = nvtxRangeStartA("decode");
  EXPECT_NE(range, other);
  std::thread([&] {
    nvtxRangeEnd(range);
    nvtxRangeEnd(other);
    nvtxRangeEnd(range);
  }).join();
  expect_said({"begin of all decode", "end 1"});
}

TEST_F(Ranges, ThoseThatYieldAreAsked) {
  nvtxRangePushA("background");
  nvtxRangePushA("decode");  // the first pattern decides
  nvtxRangePop();
  nvtxRangePop();
  expect_said({"begin background, which yields", "begin decode", "end 2", "end 1"});
}

TEST_F(Ranges, DomainsHaveNamesAndStacksOfTheirOwn) {
  const nvtxDomainHandle_t engine = nvtxDomainCreateA("engine"), wide = nvtxDomainCreateW(L"engine");
  const auto prefill = event("prefill"), decode = event("decode");
  nvtxRangePushEx(&prefill);  // of no domain
  nvtxDomainRangePushEx(engine, &prefill);
  nvtxDomainRangePushEx(wide, &decode);
  nvtxDomainRangePop(engine);
  expect_said({"begin engine/prefill", "begin decode", "end 1"});
  nvtxRangePop();
  nvtxDomainRangePop(wide);
  const nvtxRangeId_t range = nvtxDomainRangeStartEx(wide, &prefill);
  nvtxDomainRangeEnd(wide, range);
  expect_said(
      {"begin engine/prefill", "begin decode", "end 1", "end 2", "begin of all engine/prefill", "end 3"});
  nvtxDomainDestroy(engine);
}

TEST_F(Ranges, RegisteredAndWideStringsAreNames) {
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
  const auto narrow = event(nvtxDomainRegisterStringA(domain, "prefill")),
             wide = event(nvtxDomainRegisterStringW(domain, L"decode"));
  auto unicode = event();
  unicode.messageType = NVTX_MESSAGE_TYPE_UNICODE;
  unicode.message.unicode = L"wörld 7";
  for (const nvtxEventAttributes_t& e : {narrow, wide, unicode}) {
    nvtxDomainRangePushEx(domain, &e);
    nvtxDomainRangePop(domain);
  }
  nvtxRangePushW(L"decode");
  nvtxRangePop();
  nvtxRangeEnd(nvtxRangeStartW(L"decode"));
  expect_said({"begin engine/prefill", "end 1", "begin decode", "end 2", "begin wörld *", "end 3",
               "begin decode", "end 4", "begin of all decode", "end 5"});
}

TEST_F(Ranges, CategoriesAreKnownByTheirNames) {
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("other");
  nvtxNameCategoryA(7, "steps");
  nvtxDomainNameCategoryW(domain, 8, L"steps");
  auto e = event("anything");
  for (const uint32_t category : {7u, 8u}) {
    e.category = category;
    nvtxRangePushEx(&e);
    nvtxRangePop();
    nvtxDomainRangePushEx(domain, &e);
    nvtxDomainRangePop(domain);
  }
  expect_said({"begin category:steps", "end 1", "begin category:steps", "end 2"});
}

TEST_F(Ranges, AThreadThatEndsTakesItsRequestsAlong) {
  std::thread([] { nvtxRangePushA("decode"); }).join();
  expect_said({"begin decode", "drop 1"});
}

TEST_F(Ranges, DeepStacksAreFollowedAsFarAsTheyGo) {
  for (int i = 0; i < 1000; i++) nvtxRangePushA("something else");
  nvtxRangePushA("decode");
  expect_said({"begin decode", "drop 1"});
  for (int i = 0; i < 1001; i++) nvtxRangePop();
  nvtxRangePushA("decode");
  nvtxRangePop();
  expect_said({"begin decode", "drop 1", "begin decode", "end 2"});
}

TEST_F(Ranges, ManyHandlesDoNoHarm) {
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
  for (int i = 0; i < 10'000; i++) nvtxDomainRegisterStringA(domain, "decode");
  nvtxRangePushEx(nullptr);
  nvtxRangePop();
  nvtxRangePushA(nullptr);
  nvtxRangePop();
  expect_said({});
}

#ifdef TS_SECOND_TOOL
TEST_F(Ranges, TheOtherToolGetsEveryCallAndItsAnswersAreTheProgramsOwn) {
  const auto calls = reinterpret_cast<decltype(&second_tool_calls)>(
      dlsym(dlopen(TS_SECOND_TOOL, RTLD_NOW | RTLD_NOLOAD), "second_tool_calls"));
  ASSERT_NE(calls, nullptr);
  std::vector<uint32_t> before;
  for (uint32_t i = 0; i < uint32_t(Nvtx::kCount); i++) before.push_back(calls(i));
  const auto e = event("decode");
  nvtxMarkEx(&e), nvtxMarkA(""), nvtxMarkW(L"");
  EXPECT_GT(nvtxRangeStartEx(&e), 1000u);
  EXPECT_GT(nvtxRangeStartA("decode"), 1000u);
  EXPECT_GT(nvtxRangeStartW(L"decode"), 1000u);
  nvtxRangeEnd(1);
  EXPECT_GT(nvtxRangePushEx(&e), 1000);
  EXPECT_GT(nvtxRangePushA("decode"), 1000);
  EXPECT_GT(nvtxRangePushW(L"decode"), 1000);
  EXPECT_GT(nvtxRangePop(), 1000);
  nvtxNameCategoryA(1, ""), nvtxNameCategoryW(1, L"");
  nvtxNameOsThreadA(1, ""), nvtxNameOsThreadW(1, L"");
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("a");
  EXPECT_GT(reinterpret_cast<uint64_t>(domain), 1000u);
  nvtxDomainCreateW(L"b");
  nvtxDomainMarkEx(domain, &e);
  nvtxDomainRangeEnd(domain, nvtxDomainRangeStartEx(domain, &e));
  nvtxDomainRangePushEx(domain, &e);
  nvtxDomainRangePop(domain);
  nvtxResourceAttributes_t resource{};
  nvtxDomainResourceDestroy(nvtxDomainResourceCreate(domain, &resource));
  nvtxDomainNameCategoryA(domain, 1, ""), nvtxDomainNameCategoryW(domain, 1, L"");
  nvtxDomainRegisterStringA(domain, ""), nvtxDomainRegisterStringW(domain, L"");
  nvtxDomainDestroy(domain);
  for (uint32_t i = 0; i < uint32_t(Nvtx::kCount); i++) EXPECT_EQ(calls(i), before[i] + 1) << i;
}
#else
TEST_F(Ranges, WithoutAnotherToolTheProgramGetsWhatNvtxPromises) {
  EXPECT_EQ(nvtxRangePushA("decode"), NVTX_NO_PUSH_POP_TRACKING);
  EXPECT_EQ(nvtxRangePop(), NVTX_NO_PUSH_POP_TRACKING);
  EXPECT_NE(nvtxDomainCreateA("a"), nullptr);
  nvtxMarkA("what we do not need has no function");
}
#endif

TEST(Patterns, MeanNamesDomainsAndCategories) {
  using ranges::matches;
  EXPECT_TRUE(matches("", "") && matches("*", "") && matches("*", "a") && matches("a*c*", "abcd"));
  EXPECT_TRUE(matches("step *", "step 12") && matches("*a*b", "xaxbxb"));
  EXPECT_FALSE(matches("a", "") || matches("", "a") || matches("a*c", "abcd") || matches("step *", "step"));
  EXPECT_FALSE(matches("*a*b", "xaxbx"));
  using ranges::means;
  EXPECT_TRUE(means("a/b", {"", "a/b", ""}) && means("a/b", {"a", "b", ""}) && means("a/*", {"a", "b", ""}));
  EXPECT_TRUE(means("b", {"a", "b", ""}) && means("category:c", {"", "b", "c"}));
  EXPECT_FALSE(means("a/b", {"", "b", ""}) || means("category:c", {"", "c", ""}) ||
               means("category:*", {"a", "b", ""}));
}

TEST(Utf8, WholeLettersAreKept) {
  char out[8];
  ranges::to_utf8(L"aä€\U0001f600", out, sizeof out);
  EXPECT_STREQ(out, "aä€");
  const wchar_t bad[] = {wchar_t(0x7fffffff), 0};
  ranges::to_utf8(bad, out, sizeof out);
  EXPECT_STREQ(out, "\xef\xbf\xbd");
}

}  // namespace
}  // namespace tessera::test

extern "C" __attribute__((visibility("default"))) const tessera::ranges::RequestSide* tessera_request_side(
    uint32_t version) noexcept {
  return version == tessera::ranges::kContractVersion ? &tessera::test::kSide : nullptr;
}
