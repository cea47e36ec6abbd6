#include "kernels/image/write.h"

#include <lz4.h>
#include <zstd.h>

#include <string_view>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

constexpr uint16_t kFormatVersion = 0x0101;  // of an entry
constexpr size_t kOptionsRecordBytes = 8;
constexpr int kZstdLevel = 3;

enum class Compression { kNone, kLz4, kZstd };
struct Method {
  std::string_view name;
  Compression method;
  uint64_t flag;
};
constexpr Method kMethods[] = {{"none", Compression::kNone, 0},
                               {"lz4", Compression::kLz4, kFlagLz4},
                               {"zstd", Compression::kZstd, kFlagZstd}};

const Method* method_of(const Entry& e) {
  for (const Method& m : kMethods)
    if (m.name == e.compression) return &m;
  return nullptr;
}

template <class T>
void store(std::vector<uint8_t>* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

void pad_to_8(std::vector<uint8_t>* bytes) {
  bytes->resize((bytes->size() + 7) & ~size_t{7});
}

base::Error bad(base::Code code, const char* what) {
  return base::error(code, std::string("fat binary to write: ") + what);
}

base::Result<std::vector<uint8_t>> compress(const std::vector<uint8_t>& plain, Compression method) {
  if (method == Compression::kNone) return plain;
  const bool lz4 = method == Compression::kLz4;
  std::vector<uint8_t> out(lz4 ? size_t(LZ4_compressBound(int(plain.size())))
                               : ZSTD_compressBound(plain.size()));
  if (lz4) {
    const int n =
        LZ4_compress_default(reinterpret_cast<const char*>(plain.data()), reinterpret_cast<char*>(out.data()),
                             int(plain.size()), int(out.size()));
    if (n <= 0) return bad(base::Code::kInternal, "LZ4 fails");
    out.resize(size_t(n));
    return out;
  }
  const size_t n = ZSTD_compress(out.data(), out.size(), plain.data(), plain.size(), kZstdLevel);
  if (ZSTD_isError(n)) return bad(base::Code::kInternal, "zstd fails");
  out.resize(n);
  return out;
}

base::Status append(const LoadedEntry& e, std::vector<uint8_t>* out) {
  const Method* method = method_of(e);
  if (e.kind == EntryKind::kOther)
    return bad(base::Code::kUnsupported, "an entry of a kind that is not known");
  if (!method) return bad(base::Code::kInvalid, "a compression that does not exist");
  if (e.payload.size() >= kMaxPayloadBytes || e.version_major > UINT16_MAX || e.version_minor > UINT16_MAX ||
      e.options.size() > kMaxOptionsBytes || e.options.find('\0') != std::string::npos)
    return bad(base::Code::kInvalid, "an entry does not fit into the fields of its header");

  std::vector<uint8_t> plain = e.payload;
  if (e.kind == EntryKind::kPtx) plain.push_back(0);  // a driver takes it for a text
  auto payload = compress(plain, method->method);
  if (!payload.ok()) return payload.error();
  const bool compressed = method->method != Compression::kNone;
  const auto compressed_bytes = static_cast<uint32_t>(payload->size());
  pad_to_8(&*payload);

  std::vector<uint8_t> header(kEntryHeaderBytes);
  if (!e.options.empty() || e.kind == EntryKind::kPtx) {  // of PTX NVIDIA's tools insist on it
    const auto text = static_cast<uint32_t>(kEntryHeaderBytes + kOptionsRecordBytes);
    header.resize(text);
    store(&header, 20, static_cast<uint32_t>(kEntryHeaderBytes));
    store(&header, kEntryHeaderBytes, text);
    store(&header, kEntryHeaderBytes + 4, static_cast<uint32_t>(e.options.size()));
    header.insert(header.end(), e.options.begin(), e.options.end());
    header.push_back(0);
    pad_to_8(&header);
  }
  store(&header, 0, e.kind == EntryKind::kPtx ? kKindPtx : kKindElf);
  store(&header, 2, kFormatVersion);
  store(&header, 4, static_cast<uint32_t>(header.size()));
  store(&header, 8, static_cast<uint64_t>(payload->size()));
  store(&header, 16, compressed ? compressed_bytes : 0u);
  store(&header, 24, static_cast<uint16_t>(e.version_minor));
  store(&header, 26, static_cast<uint16_t>(e.version_major));
  store(&header, 28, static_cast<uint32_t>(e.sm));
  store(&header, 40,
        kFlagsOfLinux64 | method->flag | (e.arch_specific ? kFlagArchSpecific : 0) |
            (e.family_specific ? kFlagFamilySpecific : 0));
  store(&header, 56, compressed ? static_cast<uint64_t>(plain.size()) : uint64_t{0});
  out->insert(out->end(), header.begin(), header.end());
  out->insert(out->end(), payload->begin(), payload->end());
  return base::ok();
}

}  // namespace

base::Result<std::vector<uint8_t>> write_container(std::span<const LoadedEntry> entries) {
  std::vector<uint8_t> out(kContainerHeaderBytes);
  for (const LoadedEntry& e : entries) {
    base::Status status = append(e, &out);
    if (!status.ok()) return status.error();
  }
  store(&out, 0, kContainerMagic);
  store(&out, 4, uint16_t{1});
  store(&out, 6, static_cast<uint16_t>(kContainerHeaderBytes));
  store(&out, 8, static_cast<uint64_t>(out.size() - kContainerHeaderBytes));
  return out;
}

std::string compiled_as(const Entry& entry, std::string text) {
  if (entry.options.empty()) return text;
  LoadedEntry same;
  static_cast<Entry&>(same) = entry;
  same.compression = "none";
  same.payload.assign(text.begin(), text.end());
  const auto written = write_container({&same, 1});
  return written ? std::string(written->begin(), written->end()) : text;
}

Wrapper::Wrapper(std::vector<uint8_t> container) : header_{kWrapperMagic, 1, nullptr, nullptr} {
  containers_.push_back(std::move(container));
  header_.data = containers_[0].data();
}

Wrapper::Wrapper(std::vector<uint8_t> linked, std::vector<std::vector<uint8_t>> units)
    : containers_(std::move(units)), header_{kWrapperMagic, 2, nullptr, nullptr} {
  containers_.push_back(std::move(linked));
  header_.data = containers_.back().data();
  for (size_t i = 0; i + 1 < containers_.size(); i++) list_.push_back(containers_[i].data());
  list_.push_back(nullptr);
  header_.units = list_.data();
}

}  // namespace tessera::image
