#include "cli/run/newer_names.h"

#include <dlfcn.h>
#include <elf.h>
#include <gnu/libc-version.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/hash.h"
#include "base/machine.h"
#include "base/own_folder.h"
#include "base/user_file.h"
#include "cli/run/client_environment.h"
#include "cli/run/lookups.h"
#include "driver_api/open_driver.h"
#include "interpose/arch/written_stub.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using arch::kPage, arch::kPlace, arch::kFirstCall, arch::kStubBytes;

constexpr char kResolver[] = "tessera_unlisted_call";  // interpose/entry/stubs.S
constexpr size_t kWord = 8;

// interpose/entry/tables.h, TesseraUnlisted; the stub of a name jumps to the first word.
struct Record {
  uint64_t target, name;
};

uint32_t gnu_hash_of(const std::string& name) {
  uint32_t hash = 5381;
  for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
  return hash;
}

constexpr size_t up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

class File {  // whose offsets are its addresses
 public:
  explicit File(size_t bytes) : bytes_(bytes, '\0') {}
  template <class T>
  void put(size_t at, const T& value) {
    memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void put_text(size_t at, const std::string& text) { memcpy(bytes_.data() + at, text.data(), text.size()); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

struct Symbol {
  std::string name;
  uint32_t hash, bucket;
};

// In the order that DT_GNU_HASH wants.
std::vector<Symbol> symbols_of(std::span<const std::string> names, uint32_t buckets) {
  std::vector<Symbol> out;
  for (const std::string& name : names) out.push_back({name, gnu_hash_of(name), gnu_hash_of(name) % buckets});
  std::ranges::stable_sort(out, {}, &Symbol::bucket);
  return out;
}

void put_hash_table(File& file, size_t at, std::span<const Symbol> symbols, uint32_t first,
                    uint32_t filter_words) {
  constexpr uint32_t kShift = 6, kBits = 64;
  const uint32_t buckets = uint32_t(symbols.size());
  const uint32_t head[] = {buckets, first, filter_words, kShift};
  file.put(at, head);
  std::vector<uint64_t> filter(filter_words);
  const size_t bucket = at + sizeof head + filter_words * kWord, chain = bucket + buckets * sizeof(uint32_t);
  for (uint32_t i = 0; i < symbols.size(); i++) {
    const uint32_t hash = symbols[i].hash;
    filter[hash / kBits % filter_words] |= 1ull << hash % kBits | 1ull << (hash >> kShift) % kBits;
    const bool last = i + 1 == symbols.size() || symbols[i + 1].bucket != symbols[i].bucket;
    file.put(chain + i * sizeof(uint32_t), (hash & ~1u) | uint32_t(last));
    if (i == 0 || symbols[i - 1].bucket != symbols[i].bucket)
      file.put(bucket + symbols[i].bucket * sizeof(uint32_t), first + i);
  }
  for (uint32_t i = 0; i < filter_words; i++) file.put(at + sizeof head + i * kWord, filter[i]);
}

// Programs that start meanwhile see all of it or what was there before.
base::Status replace_file(const std::string& path, const std::string& content) {
  const std::string made = path + "." + std::to_string(getpid());
  if (const auto written = base::write_user_file(made, content); !written.ok()) return written;
  std::error_code failed;
  fs::rename(made, path, failed);
  if (failed) return base::error(base::Code::kUnavailable, path + ": " + failed.message());
  return base::ok();
}

}  // namespace

std::vector<std::string> newer_names(const std::string& driver) {
  void* handle = dlopen(driver.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return {};
  std::vector<std::string> names = driver_api::unlisted_exports(handle);
  dlclose(handle);
  return names;
}

std::string newer_names_library(std::span<const std::string> names) {
  constexpr uint32_t kFirst = 2;  // symbol 0 is none, 1 the resolver
  const uint32_t n = uint32_t(names.size()), filter_words = std::bit_ceil(n / 4 + 1);
  const std::vector<Symbol> symbols = symbols_of(names, n);
  std::string strings(1, '\0');
  std::vector<uint32_t> string_at;
  const auto add_string = [&](const std::string& text) {
    strings += text + '\0';
    return uint32_t(strings.size() - text.size() - 1);
  };
  const uint32_t soname = add_string(kNewerNames), resolver_name = add_string(kResolver);
  for (const Symbol& symbol : symbols) string_at.push_back(add_string(symbol.name));

  // Headers, tables and code; then, on pages of their own, what is written: resolver's address, records, dynamic section.
  constexpr size_t kSegments = 4, kDynamic = 10;
  const size_t symbol_table = sizeof(Elf64_Ehdr) + kSegments * sizeof(Elf64_Phdr),
               hash_table = symbol_table + (kFirst + n) * sizeof(Elf64_Sym),
               string_table =
                   hash_table + 4 * sizeof(uint32_t) + filter_words * kWord + 2 * n * sizeof(uint32_t),
               relocations = up(string_table + strings.size(), kWord), n_relocations = 1 + 2 * n,
               code = up(relocations + n_relocations * sizeof(Elf64_Rela), 16),
               code_end = code + n * kStubBytes, data = up(code_end, kPage), resolver = data,
               records = data + kWord, dynamic = records + n * sizeof(Record),
               end = dynamic + kDynamic * sizeof(Elf64_Dyn);
  File file(end);

  Elf64_Ehdr header{};
  memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = header.e_version = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = base::kElfMachine;
  header.e_phoff = header.e_ehsize = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = kSegments;
  file.put(0, header);
  const Elf64_Phdr segments[kSegments] = {
      {PT_LOAD, PF_R | PF_X, 0, 0, 0, code_end, code_end, kPage},
      {PT_LOAD, PF_R | PF_W, data, data, data, end - data, end - data, kPage},
      {PT_DYNAMIC, PF_R | PF_W, dynamic, dynamic, dynamic, end - dynamic, end - dynamic, kWord},
      {PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0, 0, kWord},
  };
  file.put(sizeof header, segments);

  // Weak: this library may stand where libtessera.so does not.
  file.put(symbol_table + sizeof(Elf64_Sym),
           Elf64_Sym{resolver_name, ELF64_ST_INFO(STB_WEAK, STT_NOTYPE), STV_DEFAULT, SHN_UNDEF, 0, 0});
  file.put(relocations, Elf64_Rela{resolver, ELF64_R_INFO(1, base::kRelocatesAddress), 0});
  for (uint32_t i = 0; i < n; i++) {
    const size_t stub = code + i * kStubBytes, record = records + i * sizeof(Record);
    constexpr uint16_t kSection = 1;  // any: there are no section headers
    file.put(symbol_table + (kFirst + i) * sizeof(Elf64_Sym),
             Elf64_Sym{string_at[i], ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), STV_DEFAULT, kSection, stub,
                       kStubBytes});
    arch::put_stub(file, stub, record, resolver);
    const auto relative = [&](uint32_t which, size_t at, size_t to) {
      file.put(relocations + (1 + 2 * i + which) * sizeof(Elf64_Rela),
               Elf64_Rela{at, ELF64_R_INFO(0, arch::kRelocatesByBase), Elf64_Sxword(to)});
    };
    relative(0, record + offsetof(Record, target), stub + kFirstCall);
    relative(1, record + offsetof(Record, name), string_table + string_at[i]);
  }
  put_hash_table(file, hash_table, symbols, kFirst, filter_words);
  file.put_text(string_table, strings);
  const Elf64_Dyn entries[kDynamic] = {
      {DT_SONAME, {soname}},
      {DT_GNU_HASH, {hash_table}},
      {DT_SYMTAB, {symbol_table}},
      {DT_SYMENT, {sizeof(Elf64_Sym)}},
      {DT_STRTAB, {string_table}},
      {DT_STRSZ, {strings.size()}},
      {DT_RELA, {relocations}},
      {DT_RELASZ, {n_relocations * sizeof(Elf64_Rela)}},
      {DT_RELAENT, {sizeof(Elf64_Rela)}},
      {DT_NULL, {0}},
  };
  file.put(dynamic, entries);
  return file.take();
}

bool loader_takes_newer_names(std::string_view libc_version) {
  return glibc_is_from(32, libc_version);
}

base::Result<std::string> keep_newer_names(std::span<const std::string> names) {
  if (const std::string libc = gnu_get_libc_version(); !loader_takes_newer_names(libc))
    return base::error(base::Code::kUnsupported, "the loader of glibc " + libc + " ends programs for it");
  const std::string cache = cache_folder();
  if (cache.empty()) return base::error(base::Code::kNotFound, "no folder for a cache: HOME is not set");
  std::error_code failed;
  fs::create_directories(cache, failed);
  const std::string folder = cache + "/newer";
  if (auto own = base::make_own_folder(folder, base::FolderOf::kUser); !own.ok()) return own.error();
  const std::string library = newer_names_library(names);
  char file[32];
  snprintf(file, sizeof file, "/%016llx.so",
           static_cast<unsigned long long>(base::fnv1a(library.data(), library.size())));
  const std::string path = folder + file;
  if (!file_exists(path))
    if (const auto written = replace_file(path, library); !written.ok()) return written.error();
  std::string why = why_not_loadable(path);
  if (void* loaded = why.empty() ? dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL) : nullptr)
    dlclose(loaded);
  else if (why.empty())
    why = dlerror();  // the folder may be one from which nothing may be run
  if (!why.empty()) return base::error(base::Code::kInvalid, why);
  return path;
}

base::Status install_newer_names(std::span<const std::string> names, const std::string& folder) {
  if (!kPlace[0]) return base::ok();
  const std::string place = folder + kPlace, path = place + "/" + kNewerNames;
  std::error_code failed;
  if (!names.empty()) {
    fs::create_directories(place, failed);
    return replace_file(path, newer_names_library(names));
  }
  fs::remove(path, failed);
  if (failed) return base::error(base::Code::kUnavailable, path + ": " + failed.message());
  return base::ok();
}

void install_newer_names() {
  if (!why_no_driver().empty()) return;  // as in a container beside whose driver it will be used
  const std::vector<std::string> names = newer_names(meant_driver());
  const auto installed = install_newer_names(names, find_layout().prefix + "/lib");
  if (installed.ok()) return;
  fprintf(stderr, "tessera: programs in containers do not find what only the driver knows, by dlsym: %s\n",
          installed.error().text.c_str());
}

}  // namespace tessera::cli
