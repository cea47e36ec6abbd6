#include "kernels/image/image.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "fixtures.h"
#include "kernels/image/write.h"
#include "kernels/ptx/parser.h"

namespace tessera::image {
namespace {

std::span<const uint8_t> bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}
std::string text(const LoadedEntry& e) {
  return {e.payload.begin(), e.payload.end()};
}

// Bytes that end exactly where a page without a mapping behind it begins: reading one too many faults.
class Guarded {
 public:
  explicit Guarded(const std::string& content) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t room = (content.size() + page - 1) / page * page;
    size_ = room + kBehind;
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(base_, room, PROT_READ | PROT_WRITE);
    start_ = base_ + room - content.size();
    std::memcpy(start_, content.data(), content.size());
  }
  ~Guarded() { munmap(base_, size_); }
  const void* get() const { return start_; }

 private:
  // As far as headers may lead: what is readable there otherwise is somebody else's, also a sanitizer's.
  static constexpr size_t kBehind = size_t{5} << 30;
  uint8_t* base_;
  uint8_t* start_;
  size_t size_;
};

constexpr size_t kContainerAndHeader = 16 + 64;  // headers before the first payload

class FatbinTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, FatbinTest, testing::Values("none", "speed", "balance", "size"));

TEST_P(FatbinTest, HasTheCubinAndThePtx) {
  std::string file = fixture(std::string(GetParam()) + ".fatbin");
  auto entries = read(bytes(file));
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].kind, EntryKind::kCubin);
  EXPECT_EQ(text((*entries)[0]), fixture("kernels.cubin"));
  const LoadedEntry& ptx = (*entries)[1];
  EXPECT_EQ(ptx.kind, EntryKind::kPtx);
  EXPECT_EQ(ptx.sm, 75u);
  EXPECT_FALSE(ptx.arch_specific);
  auto embedded = ptx::parse(text(ptx));
  auto original = ptx::parse(fixture("kernels.ptx"));
  ASSERT_TRUE(embedded.ok()) << embedded.error().text;
  EXPECT_EQ(embedded->items.size(), original->items.size());
  EXPECT_EQ(ptx.version_major, original->version_major);
}

TEST_P(FatbinTest, EveryTruncationIsAnErrorAndNeverReadsBehindTheEnd) {
  std::string file = fixture(std::string(GetParam()) + ".fatbin");
  // Every length near the headers and near the end, then steps.
  for (size_t n = 0; n < file.size(); n += (n < 256 || n + 64 > file.size()) ? 1 : 97) {
    auto exact = std::make_unique<uint8_t[]>(n);  // exact size, so that a sanitizer sees an overrun
    std::memcpy(exact.get(), file.data(), n);
    EXPECT_FALSE(list({exact.get(), n}).ok()) << n;
  }
}

TEST_P(FatbinTest, UnsizedReadsUpToTheEndOfTheMapping) {
  std::string file = fixture(std::string(GetParam()) + ".fatbin");
  Guarded whole(file);
  auto entries = list_unsized(whole.get());
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  EXPECT_EQ(entries->size(), 2u);
  for (size_t n : {size_t{4}, size_t{15}, size_t{16}, size_t{80}, file.size() / 2, file.size() - 1}) {
    Guarded cut(file.substr(0, n));
    EXPECT_FALSE(list_unsized(cut.get()).ok()) << n;
  }
  EXPECT_FALSE(list_unsized(whole.get(), file.size() - 1).ok()) << "bounded by max_bytes";
}

TEST_P(FatbinTest, DamagedHeadersNeverCrash) {
  const std::string file = fixture(std::string(GetParam()) + ".fatbin");
  for (size_t at = 0; at < 96; ++at) {
    for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(value);
      auto entries = read(bytes(damaged));
      if (entries.ok()) {
        EXPECT_LE(entries->size(), 16u);
      }
    }
  }
}

TEST(Wrapper, VersionOneAndTwo) {
  std::string one = fixture("balance.fatbin"), two = fixture("none.fatbin");
  struct Wrapper {
    uint32_t magic, version;
    const void* data;
    const void* extra;
  };
  Wrapper v1{0x466243b1, 1, one.data(), nullptr};
  auto entries = list_unsized(&v1);
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  EXPECT_EQ(entries->size(), 2u);
  const void* list[] = {two.data(), one.data(), nullptr};
  Wrapper v2{0x466243b1, 2, one.data(), list};
  entries = list_unsized(&v2);
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  EXPECT_EQ(entries->size(), 6u);
  Wrapper v3{0x466243b1, 3, one.data(), nullptr};
  EXPECT_FALSE(list_unsized(&v3).ok());
  Wrapper null{0x466243b1, 1, nullptr, nullptr};
  EXPECT_FALSE(list_unsized(&null).ok());
  EXPECT_FALSE(list_unsized(nullptr).ok());
  EXPECT_FALSE(read(bytes(std::string(reinterpret_cast<const char*>(&v1), sizeof v1))).ok());
}

TEST(Bare, CubinWithItsLengthFromTheHeaders) {
  std::string cubin = fixture("kernels.cubin");
  Guarded whole(cubin);
  auto entries = list_unsized(whole.get());
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ((*entries)[0].kind, EntryKind::kCubin);
  EXPECT_EQ((*entries)[0].sm, 75u);
  EXPECT_EQ((*entries)[0].stored_payload.size(), cubin.size());
  for (size_t n = 0; n < cubin.size(); n += n < 128 ? 1 : 501) {
    EXPECT_FALSE(read(bytes(cubin.substr(0, n))).ok()) << n;
    if (n >= 4) {
      Guarded cut(cubin.substr(0, n));
      EXPECT_FALSE(list_unsized(cut.get()).ok()) << n;
    }
  }
  for (size_t at = 4; at < 64; ++at) {  // hostile headers
    std::string damaged = cubin;
    damaged[at] = static_cast<char>(0xff);
    Guarded mapped(damaged);
    (void)read(bytes(damaged));
    (void)list_unsized(mapped.get());
  }
}

TEST(Bare, PtxWithAndWithoutEnd) {
  std::string ptx = "// by hand\n.version 8.7\n.target sm_90a\n.address_size 64\n";
  auto entries = read(bytes(ptx + std::string(3, '\0')));
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  const LoadedEntry& e = (*entries)[0];
  EXPECT_EQ(e.kind, EntryKind::kPtx);
  EXPECT_EQ(e.sm, 90u);
  EXPECT_TRUE(e.arch_specific);
  EXPECT_EQ(e.version_major, 8u);
  EXPECT_EQ(e.version_minor, 7u);
  EXPECT_EQ(text(e), ptx);
  Guarded ended(ptx + std::string(1, '\0')), endless(ptx);
  EXPECT_TRUE(list_unsized(ended.get()).ok());
  EXPECT_FALSE(list_unsized(endless.get()).ok());
  EXPECT_FALSE(read(bytes("hello, world, this is not an image")).ok());
  EXPECT_FALSE(read({}).ok());
}

TEST(Host, FindsTheFatBinariesOfAProgram) {
  // A host object is an ELF with a section .nv_fatbin: made here from a cubin's layout is not possible, so by
  // hand.
  std::string fatbin = fixture("none.fatbin");
  std::string names("\0.nv_fatbin\0.shstrtab\0", 22);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, "\177ELF\2\1\1", 7);
  header.e_machine = EM_X86_64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_offset = sizeof header;
  sections[1].sh_size = fatbin.size();
  sections[2].sh_name = 12;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = sizeof header + fatbin.size();
  sections[2].sh_size = names.size();
  header.e_shoff = sections[2].sh_offset + names.size();
  std::string file(reinterpret_cast<char*>(&header), sizeof header);
  file += fatbin + names + std::string(reinterpret_cast<char*>(sections), sizeof sections);
  auto entries = read(bytes(file));
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  EXPECT_EQ(entries->size(), 2u);
  for (size_t n = 0; n < file.size(); n += 211) {
    EXPECT_FALSE(read(bytes(file.substr(0, n))).ok()) << n;
  }
}

LoadedEntry make(EntryKind kind, unsigned sm, bool a = false, bool f = false) {
  LoadedEntry e;
  e.kind = kind;
  e.sm = sm;
  e.arch_specific = a;
  e.family_specific = f;
  return e;
}

TEST(Choose, AsADriverWould) {
  constexpr auto kPtx = EntryKind::kPtx, kCubin = EntryKind::kCubin;
  std::vector<Entry> e = {make(kCubin, 75), make(kCubin, 80), make(kCubin, 86), make(kPtx, 75),
                          make(kPtx, 90)};
  EXPECT_EQ(choose(e, 75), &e[0]);
  EXPECT_EQ(choose(e, 80), &e[1]);
  EXPECT_EQ(choose(e, 86), &e[2]);
  EXPECT_EQ(choose(e, 89), &e[2]);
  EXPECT_EQ(choose(e, 90), &e[4]);  // machine code does not cross major versions
  EXPECT_EQ(choose(e, 120), &e[4]);
  EXPECT_EQ(choose(e, 70), nullptr);
  std::vector<Entry> specific = {make(kCubin, 90, true), make(kPtx, 90, true), make(kPtx, 80)};
  EXPECT_EQ(choose(specific, 90), &specific[0]);
  EXPECT_EQ(choose(specific, 100), &specific[2]);
  std::vector<Entry> family = {make(kCubin, 100, false, true), make(kPtx, 100, false, true)};
  EXPECT_EQ(choose(family, 103), &family[0]);
  EXPECT_EQ(choose(family, 120), nullptr);
  std::vector<Entry> unknown = {make(EntryKind::kOther, 100, true), make(kPtx, 90)};
  EXPECT_EQ(choose(unknown, 100), &unknown[1]);
  std::vector<Entry> unlinked = {make(kCubin, 90), make(kPtx, 80)};
  unlinked[0].relocatable = true;
  EXPECT_EQ(choose(unlinked, 90), &unlinked[1]);
  EXPECT_EQ(choose({}, 90), nullptr);
}

void expect_equal(const std::vector<LoadedEntry>& a, const std::vector<LoadedEntry>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) {
    EXPECT_EQ(a[i].kind, b[i].kind) << i;
    EXPECT_EQ(a[i].sm, b[i].sm) << i;
    EXPECT_EQ(a[i].arch_specific, b[i].arch_specific) << i;
    EXPECT_EQ(a[i].family_specific, b[i].family_specific) << i;
    EXPECT_EQ(a[i].relocatable, b[i].relocatable) << i;
    EXPECT_EQ(a[i].version_major, b[i].version_major) << i;
    EXPECT_EQ(a[i].version_minor, b[i].version_minor) << i;
    EXPECT_EQ(a[i].options, b[i].options) << i;
    EXPECT_STREQ(a[i].compression, b[i].compression) << i;
    EXPECT_EQ(a[i].payload, b[i].payload) << i;
  }
}

TEST_P(FatbinTest, WrittenAgainHoldsTheSame) {
  const std::string file = fixture(std::string(GetParam()) + ".fatbin");
  auto entries = read(bytes(file));
  ASSERT_TRUE(entries.ok());
  auto written = write_container(*entries);
  ASSERT_TRUE(written.ok()) << written.error().text;
  auto again = read(*written);
  ASSERT_TRUE(again.ok()) << again.error().text;
  expect_equal(*again, *entries);
  // Stored plain there is nothing to choose: the machine code's entry is that of NVIDIA's tool, byte by byte.
  if (std::string(GetParam()) == "none") {
    const size_t n = kContainerAndHeader + (*entries)[0].payload.size();
    ASSERT_GE(written->size(), n);
    EXPECT_EQ(std::memcmp(written->data() + 16, file.data() + 16, n - 16), 0);
  }
}

TEST(Write, EveryFieldAndCompressionComesBack) {
  std::vector<LoadedEntry> entries;
  for (const char* compression : {"none", "lz4", "zstd"}) {
    for (bool a : {false, true}) {
      LoadedEntry ptx = make(EntryKind::kPtx, 90, a, !a);
      const std::string content = std::string(".version 8.7\n.target sm_90\n") + compression;
      ptx.payload.assign(content.begin(), content.end());
      ptx.version_major = 8;
      ptx.version_minor = 7;
      ptx.options = a ? "-g --compile-only" : "";
      ptx.compression = compression;
      entries.push_back(ptx);
    }
    LoadedEntry code = make(EntryKind::kCubin, 120);
    const std::string cubin = fixture("kernels.cubin");
    code.payload.assign(cubin.begin(), cubin.end());
    code.compression = compression;
    entries.push_back(code);
    LoadedEntry empty = make(EntryKind::kCubin, 75);
    empty.compression = compression;
    entries.push_back(empty);
  }
  auto written = write_container(entries);
  ASSERT_TRUE(written.ok()) << written.error().text;
  auto again = read(*written);
  ASSERT_TRUE(again.ok()) << again.error().text;
  expect_equal(*again, entries);
}

// Without one NVIDIA's tools take the whole container for broken.
TEST(Write, PtxHasARecordOfOptionsAlsoWhereThereAreNone) {
  LoadedEntry ptx = make(EntryKind::kPtx, 90);
  ptx.payload.assign(16, 'a');
  const auto written = write_container(std::vector{ptx});
  ASSERT_TRUE(written.ok());
  const std::string theirs = fixture("none.fatbin");
  size_t at = 16;  // of the first PTX of what nvcc wrote
  const auto word = [](const auto& bytes, size_t offset) {
    uint32_t value;
    std::memcpy(&value, &bytes[offset], sizeof value);
    return value;
  };
  while ((word(theirs, at) & 0xffff) != 1) at += word(theirs, at + 4) + word(theirs, at + 8);
  for (const size_t offset : {4, 20, 64, 68})
    EXPECT_EQ(word(*written, 16 + offset), word(theirs, at + offset)) << offset;
}

TEST(Write, WhatTheFormatCannotHoldIsRefused) {
  LoadedEntry e = make(EntryKind::kPtx, 75);
  EXPECT_TRUE(write_container(std::vector{e}).ok());
  for (auto break_it :
       {+[](LoadedEntry& x) { x.kind = EntryKind::kOther; },
        +[](LoadedEntry& x) { x.compression = "brotli"; }, +[](LoadedEntry& x) { x.version_major = 65536; },
        +[](LoadedEntry& x) { x.options = std::string("a\0b", 3); }}) {
    LoadedEntry broken = e;
    break_it(broken);
    EXPECT_FALSE(write_container(std::vector{broken}).ok());
  }
}

// With their payloads.
base::Result<std::vector<LoadedEntry>> loaded(const base::Result<std::vector<Entry>>& entries) {
  if (!entries.ok()) return entries.error();
  std::vector<LoadedEntry> out;
  for (const Entry& e : *entries) {
    auto payload = load(e);
    if (!payload.ok()) return payload.error();
    out.push_back({e, *payload});
  }
  return out;
}

TEST(Write, WrappersOfBothVersions) {
  LoadedEntry e = make(EntryKind::kPtx, 75), f = make(EntryKind::kPtx, 90);
  const std::string content = ".version 8.7\n";
  e.payload.assign(content.begin(), content.end());
  f.payload = e.payload;
  const auto one = *write_container(std::vector{e}), two = *write_container(std::vector{f, e});
  Wrapper v1(two), v2(one, {two, one}), stub(one, {});
  auto entries = loaded(list_unsized(v1.image()));
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  expect_equal(*entries, {f, e});
  entries = loaded(list_unsized(v2.image()));
  ASSERT_TRUE(entries.ok()) << entries.error().text;
  expect_equal(*entries, {e, f, e, e});
  entries = loaded(list_unsized(stub.image()));
  ASSERT_TRUE(entries.ok());
  expect_equal(*entries, {e});
}

// Whatever the first entry suffers, the others are listed and load.
TEST(Lazy, ADamagedPayloadHarmsNobodyElse) {
  for (const char* compression : {"lz4", "zstd"}) {
    LoadedEntry ptx = make(EntryKind::kPtx, 75), code = make(EntryKind::kCubin, 90);
    ptx.payload.assign(10000, 'a');
    const std::string cubin = fixture("kernels.cubin");
    code.payload.assign(cubin.begin(), cubin.end());
    ptx.compression = code.compression = compression;
    auto written = write_container(std::vector{ptx, code});
    ASSERT_TRUE(written.ok());
    auto entries = list(*written);
    ASSERT_TRUE(entries.ok() && entries->size() == 2);
    EXPECT_EQ((*entries)[0].claimed_bytes, ptx.payload.size() + 1);
    EXPECT_LT((*entries)[0].stored_payload.size(), ptx.payload.size());
    const size_t first = size_t((*entries)[0].stored_payload.data() - written->data());
    std::fill_n(written->data() + first, 8, 0xff);
    EXPECT_FALSE(load((*entries)[0]).ok());
    EXPECT_FALSE(read(*written).ok());
    auto whole = load((*entries)[1]);
    ASSERT_TRUE(whole.ok()) << whole.error().text;
    EXPECT_EQ(*whole, code.payload);
  }
}

// A header that lies about the size is refused before memory is taken for it.
TEST(Lazy, BombsAreRefused) {
  for (const char* compression : {"lz4", "zstd"}) {
    LoadedEntry ptx = make(EntryKind::kPtx, 75);
    ptx.payload.assign(100, 'a');
    ptx.compression = compression;
    auto written = write_container(std::vector{ptx});
    ASSERT_TRUE(written.ok());
    for (uint64_t claim : {uint64_t{1} << 28, uint64_t{1} << 40, ~uint64_t{0}}) {
      std::memcpy(written->data() + kContainerAndHeader - 8, &claim, sizeof claim);
      auto entries = list(*written);
      ASSERT_TRUE(entries.ok());
      auto payload = load((*entries)[0]);
      ASSERT_FALSE(payload.ok());
      EXPECT_NE(payload.error().text.find("impossible"), std::string::npos) << payload.error().text;
    }
  }
}

// choose() asks whether machine code is linked: told by its first bytes, however it is stored.
TEST(Lazy, RelocatableCodeIsToldWithoutItsPayload) {
  const std::string cubin = fixture("kernels.cubin");
  for (const char* compression : {"none", "lz4", "zstd"})
    for (uint16_t type : {ET_EXEC, ET_REL}) {
      LoadedEntry code = make(EntryKind::kCubin, 75);
      code.payload.assign(cubin.begin(), cubin.end());
      std::memcpy(code.payload.data() + offsetof(Elf64_Ehdr, e_type), &type, sizeof type);
      code.compression = compression;
      auto written = write_container(std::vector{code});
      ASSERT_TRUE(written.ok());
      auto entries = list(*written);
      ASSERT_TRUE(entries.ok() && entries->size() == 1);
      EXPECT_EQ((*entries)[0].relocatable, type == ET_REL) << compression;
    }
}

}  // namespace
}  // namespace tessera::image
