#include <algorithm>
#include <string_view>

#include "kernels/image/internal.h"

namespace tessera::image {
namespace {

// CUDA Tile IR: magic, then major and minor version of a byte each, and a tag.
constexpr std::string_view kTileMagic{"\x7fTileIR\0", 8};
constexpr size_t kTileHeaderBytes = 12;
constexpr size_t kMaxWrappedContainers = 4096;  // translation units of one device link

base::Error bad(const char* what) {
  return base::error(base::Code::kInvalid, what);
}

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool take_number(std::string_view* text, unsigned* value) {
  size_t n = 0;
  for (*value = 0; n < text->size() && n < 4 && (*text)[n] >= '0' && (*text)[n] <= '9'; ++n)
    *value = *value * 10 + static_cast<unsigned>((*text)[n] - '0');
  text->remove_prefix(n);
  return n > 0;
}

// First line-starting occurrence of a directive, so that a word in a comment does not count.
size_t find_directive(std::string_view text, std::string_view name) {
  size_t at = text.find(name);
  while (at != std::string_view::npos) {
    size_t line = at ? text.find_last_of('\n', at - 1) : std::string_view::npos;
    line = line == std::string_view::npos ? 0 : line + 1;
    if (text.substr(line, at - line).find_first_not_of(" \t\r") == std::string_view::npos)
      return at + name.size();
    at = text.find(name, at + 1);
  }
  return std::string_view::npos;
}

// Several containers behind each other, as in .nv_fatbin; zeros between them are padding.
base::Status split_containers(Bytes bytes, std::vector<Bytes>* found) {
  while (bytes.size() >= kContainerHeaderBytes) {
    if (load<uint32_t>(bytes, 0) != kContainerMagic) {
      if (std::any_of(bytes.begin(), bytes.begin() + 8, [](uint8_t b) { return b != 0; }))
        return bad("fat binary: unknown bytes between containers");
      bytes = bytes.subspan(8);
      continue;
    }
    const uint64_t head = load<uint16_t>(bytes, 6), body = load<uint64_t>(bytes, 8);
    if (head < kContainerHeaderBytes || !inside(head, body, bytes.size()))
      return bad("the container is longer than the image");
    size_t used = head + body;
    found->push_back(bytes.first(used));
    used = std::min((used + 7) & ~size_t{7}, bytes.size());
    bytes = bytes.subspan(used);
  }
  if (std::any_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b != 0; }))
    return bad("fat binary: truncated container header");
  return base::ok();
}

// Length of the container at `image` from its own header, checked against what is mapped.
base::Status list_mapped_container(const void* image, size_t max_bytes, std::vector<Entry>* entries) {
  ReadableBytes readable{static_cast<const uint8_t*>(image), max_bytes, true};
  if (!image || !readable.covers(0, kContainerHeaderBytes))
    return bad("fat binary: the container is not readable");
  Bytes header(readable.begin, kContainerHeaderBytes);
  uint64_t body = load<uint64_t>(header, 8), head = load<uint16_t>(header, 6);
  if (load<uint32_t>(header, 0) != kContainerMagic || !inside(head, body, max_bytes) ||
      !readable.covers(0, head + body))
    return bad("fat binary: the container is longer than what is mapped behind it");
  return list_container(Bytes(readable.begin, head + body), entries);
}

base::Status list_wrapper(const ReadableBytes& readable, std::vector<Entry>* entries) {
  struct Wrapper {
    uint32_t magic, version;
    const void* data;
    const void* const* extra;
  };
  if (!readable.covers(0, sizeof(Wrapper))) return bad("fat binary: truncated wrapper");
  auto wrapper = load<Wrapper>(Bytes(readable.begin, sizeof(Wrapper)), 0);
  if (wrapper.version != 1 && wrapper.version != 2) {
    return base::error(base::Code::kUnsupported,
                       "fat binary: wrapper version " + std::to_string(wrapper.version) + " is not known");
  }
  base::Status status = list_mapped_container(wrapper.data, readable.limit, entries);
  if (!status.ok() || wrapper.version == 1 || !wrapper.extra) return status;
  // Version 2, a device link: the PTX lies in the containers of the translation units.
  ReadableBytes list{reinterpret_cast<const uint8_t*>(wrapper.extra), readable.limit, true};
  for (size_t i = 0; i < kMaxWrappedContainers; ++i) {
    if (!list.covers(i * sizeof(void*), sizeof(void*)))
      return bad("fat binary: the list of containers is not readable");
    if (!wrapper.extra[i]) return base::ok();
    status = list_mapped_container(wrapper.extra[i], readable.limit, entries);
    if (!status.ok()) return status;
  }
  return bad("fat binary: the list of containers does not end");
}

// Text behind `readable.begin` up to its NUL, looked for within mapped pages.
base::Result<Bytes> mapped_text(const ReadableBytes& readable) {
  constexpr size_t kStep = 4096;
  size_t n = 0;
  while (n < readable.limit) {
    // To the end of the page first, so that a text that ends just before an unmapped page is read.
    size_t address = reinterpret_cast<size_t>(readable.begin) + n;
    size_t step = std::min(kStep - address % kStep, readable.limit - n);
    if (!readable.covers(n, step)) return bad("PTX: the text has no end within mapped memory");
    if (const void* end = memchr(readable.begin + n, 0, step))
      return Bytes(readable.begin, static_cast<const uint8_t*>(end));
    n += step;
  }
  return bad("PTX: the text has no end");
}

}  // namespace

bool looks_like_ptx(Bytes bytes) {
  // Everything before .version is comments and blanks; 64 KiB of licence text is more than any tool writes.
  std::string_view text = text_of(bytes.first(std::min<size_t>(bytes.size(), 65536)));
  return text.find('\0') == std::string_view::npos &&
         find_directive(text, ".version") != std::string_view::npos;
}

Entry list_ptx(Bytes bytes) {
  Entry entry;
  entry.kind = EntryKind::kPtx;
  std::string_view text = text_of(bytes.first(std::min<size_t>(bytes.size(), 65536)));
  auto number_after = [&](std::string_view directive, std::string_view prefix) {
    size_t at = find_directive(text, directive);
    std::string_view rest = at == std::string_view::npos ? std::string_view{} : text.substr(at);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    return rest.starts_with(prefix) ? rest.substr(prefix.size()) : std::string_view{};
  };
  std::string_view rest = number_after(".version", "");
  if (take_number(&rest, &entry.version_major) && rest.starts_with(".")) {
    rest.remove_prefix(1);
    take_number(&rest, &entry.version_minor);
  }
  rest = number_after(".target", "sm_");
  if (take_number(&rest, &entry.sm)) {
    entry.arch_specific = rest.starts_with("a");
    entry.family_specific = rest.starts_with("f");
  }
  entry.stored_payload = bytes;
  entry.stored_bytes = bytes.size();
  return entry;
}

base::Result<std::vector<std::span<const uint8_t>>> parts(std::span<const uint8_t> bytes) {
  std::vector<Bytes> found;
  const uint32_t magic = bytes.size() >= 4 ? load<uint32_t>(bytes, 0) : 0;
  std::vector<Bytes> sections;
  if (magic == kContainerMagic) {
    sections.push_back(bytes);
  } else if (magic == kElfMagic && !is_cubin(bytes)) {
    sections = fatbin_sections(bytes);
  } else {
    found.push_back(bytes);
    return found;
  }
  for (Bytes section : sections) {
    base::Status status = split_containers(section, &found);
    if (!status.ok()) return status.error();
  }
  if (found.empty() && magic == kElfMagic) {
    auto size = elf_size({bytes.data(), bytes.size(), false});
    return size.ok() ? base::error(base::Code::kNotFound, "the ELF file holds no GPU code") : size.error();
  }
  if (found.empty()) return base::error(base::Code::kNotFound, "the file holds no GPU code");
  return found;
}

bool is_tile_ir(Bytes bytes) {
  return bytes.size() >= kTileHeaderBytes && text_of(bytes).starts_with(kTileMagic);
}

base::Result<std::vector<Entry>> list(std::span<const uint8_t> bytes) {
  std::vector<Entry> entries;
  if (is_tile_ir(bytes)) {
    entries.emplace_back();
    entries[0].version_major = bytes[kTileMagic.size()];
    entries[0].version_minor = bytes[kTileMagic.size() + 1];
    entries[0].stored_payload = bytes;
    entries[0].stored_bytes = bytes.size();
    return entries;
  }
  const uint32_t magic = bytes.size() >= 4 ? load<uint32_t>(bytes, 0) : 0;
  if (magic == kWrapperMagic) {
    return base::error(base::Code::kUnsupported,
                       "a fat-binary wrapper holds pointers and means nothing outside its process");
  }
  if (magic == kElfMagic && is_cubin(bytes)) {
    auto size = elf_size({bytes.data(), bytes.size(), false});
    if (!size.ok()) return size.error();
    auto entry = list_cubin(bytes.first(*size));
    if (!entry.ok()) return entry.error();
    entries.push_back(std::move(*entry));
    return entries;
  }
  if (magic == kElfMagic || magic == kContainerMagic) {
    auto containers = parts(bytes);
    if (!containers.ok()) return containers.error();
    for (Bytes container : *containers) {
      base::Status status = list_container(container, &entries);
      if (!status.ok()) return status.error();
    }
    if (entries.empty()) return base::error(base::Code::kNotFound, "the file holds no GPU code");
    return entries;
  }
  Bytes text = bytes;
  while (!text.empty() && text.back() == 0) text = text.first(text.size() - 1);
  if (!looks_like_ptx(text))
    return base::error(base::Code::kInvalid, "neither a fat binary nor a cubin nor PTX text");
  entries.push_back(list_ptx(text));
  return entries;
}

base::Result<std::vector<uint8_t>> load(const Entry& entry) {
  auto payload = decompress(entry);
  if (payload.ok() && entry.kind == EntryKind::kPtx)
    while (!payload->empty() && payload->back() == 0) payload->pop_back();
  return payload;
}

base::Result<std::vector<LoadedEntry>> read(std::span<const uint8_t> bytes) {
  auto entries = list(bytes);
  if (!entries.ok()) return entries.error();
  std::vector<LoadedEntry> loaded;
  for (Entry& entry : *entries) {
    auto payload = load(entry);
    if (!payload.ok()) return payload.error();
    entry.stored_payload = {};  // the image may go
    loaded.push_back({std::move(entry), std::move(*payload)});
  }
  return loaded;
}

base::Result<std::vector<Entry>> list_unsized(const void* image, size_t max_bytes) {
  const ReadableBytes readable{static_cast<const uint8_t*>(image), max_bytes, true};
  if (!image || !readable.covers(0, 4)) return bad("the image is not readable");
  std::vector<Entry> entries;
  base::Status status = base::ok();
  switch (load<uint32_t>(Bytes(readable.begin, 4), 0)) {
    case kWrapperMagic:
      status = list_wrapper(readable, &entries);
      break;
    case kContainerMagic:
      status = list_mapped_container(image, max_bytes, &entries);
      break;
    case kElfMagic: {
      auto size = elf_size(readable);
      return size.ok() ? list(Bytes(readable.begin, *size)) : size.error();
    }
    default: {
      auto text = mapped_text(readable);
      return text.ok() ? list(*text) : text.error();
    }
  }
  if (!status.ok()) return status.error();
  return entries;
}

}  // namespace tessera::image
