#include "kernels/image/cubin_file.h"

#include <algorithm>

namespace tessera::image {
namespace {

constexpr uint64_t kMostAlignment = 1 << 20, kMostGapBytes = 4096;

base::Error bad(const char* what) {
  return base::error(base::Code::kInvalid, std::string("cubin: ") + what);
}
base::Error unusual(const char* what) {
  return base::error(base::Code::kUnsupported, std::string("cubin: ") + what);
}

uint64_t aligned(uint64_t offset, uint64_t alignment) {
  return alignment > 1 ? (offset + alignment - 1) / alignment * alignment : offset;
}

uint64_t bytes_in_file(const Elf64_Shdr& section) {
  return section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL ? 0 : section.sh_size;
}

// The places of things in a file: all in file order, with the bytes between a thing and the end of the one before it,
// without alignment. Two walks, over the old sizes and the new ones, give old and new offsets.
class Layout {
 public:
  uint64_t place(uint64_t bytes, uint64_t alignment, uint64_t gap) {
    const uint64_t offset = aligned(end_, alignment) + gap;
    end_ = offset + bytes;
    return offset;
  }
  // The gap of a thing that lies at `offset`; false if it overlaps what is before.
  bool gap(uint64_t offset, uint64_t alignment, uint64_t* gap) const {
    const uint64_t first = aligned(end_, alignment);
    *gap = offset - first;
    return offset >= first && *gap <= kMostGapBytes;
  }

 private:
  uint64_t end_ = sizeof(Elf64_Ehdr);
};

struct Moved {  // the boundaries of one section or table
  uint64_t old_begin, old_end, new_begin, new_end;
};

// Finds a thing that begins or ends at an offset. One that has bytes is preferred, as empty ones lie between others.
template <class Matches>
const Moved* find_moved(const std::vector<Moved>& all, Matches matches) {
  const Moved* found = nullptr;
  for (const Moved& m : all)
    if (matches(m) && (!found || found->old_begin == found->old_end)) found = &m;
  return found;
}

bool move_segment(const std::vector<Moved>& all, Elf64_Phdr* segment) {
  const uint64_t begin = segment->p_offset, end = begin + segment->p_filesz;
  const Moved* first = find_moved(all, [&](const Moved& m) { return m.old_begin == begin; });
  if (!first || segment->p_memsz < segment->p_filesz) return false;
  const uint64_t without_bytes = segment->p_memsz - segment->p_filesz;
  uint64_t file_bytes = 0;
  if (segment->p_filesz) {
    const Moved* last = find_moved(all, [&](const Moved& m) { return m.old_end == end; });
    if (!last || last->new_end < first->new_begin) return false;
    file_bytes = last->new_end - first->new_begin;
  }
  segment->p_offset = first->new_begin;
  segment->p_filesz = file_bytes;
  segment->p_memsz = file_bytes + without_bytes;
  return true;
}

template <class T>
void put(std::vector<uint8_t>* out, uint64_t offset, const T& value) {
  std::memcpy(out->data() + offset, &value, sizeof value);
}

}  // namespace

CubinSection* CubinFile::find(std::string_view name) {
  const auto found =
      std::find_if(sections.begin(), sections.end(), [&](const auto& s) { return s.name == name; });
  return found == sections.end() ? nullptr : &*found;
}

base::Result<CubinFile> parse_cubin_file(Bytes elf) {
  if (!is_cubin(elf)) return bad("not machine code");
  CubinFile file;
  file.header = load<Elf64_Ehdr>(elf, 0);
  const Elf64_Ehdr& h = file.header;
  if (h.e_shentsize != sizeof(Elf64_Shdr) || h.e_shstrndx >= h.e_shnum ||
      !inside(h.e_shoff, uint64_t(h.e_shnum) * sizeof(Elf64_Shdr), elf.size()))
    return bad("the section table lies outside the image");
  if ((h.e_phnum && h.e_phentsize != sizeof(Elf64_Phdr)) ||
      !inside(h.e_phoff, uint64_t(h.e_phnum) * sizeof(Elf64_Phdr), elf.size()))
    return bad("the program headers lie outside the image");
  for (uint64_t i = 0; i < h.e_shnum; ++i) {
    CubinSection s;
    s.header = load<Elf64_Shdr>(elf, h.e_shoff + i * sizeof(Elf64_Shdr));
    const uint64_t bytes = bytes_in_file(s.header);
    if (s.header.sh_addralign > kMostAlignment || !inside(s.header.sh_offset, bytes, elf.size()))
      return bad("a section lies outside the image");
    const Bytes view = elf.subspan(s.header.sh_offset, bytes);
    s.bytes.assign(view.begin(), view.end());
    file.sections.push_back(std::move(s));
  }
  const std::vector<uint8_t> names = file.sections[h.e_shstrndx].bytes;
  for (CubinSection& s : file.sections) {
    if (s.header.sh_name >= names.size()) continue;
    const char* begin = reinterpret_cast<const char*>(names.data()) + s.header.sh_name;
    s.name.assign(begin, strnlen(begin, names.size() - s.header.sh_name));
  }
  for (uint64_t i = 0; i < h.e_phnum; ++i)
    file.segments.push_back(load<Elf64_Phdr>(elf, h.e_phoff + i * sizeof(Elf64_Phdr)));
  return file;
}

base::Result<std::vector<uint8_t>> write_cubin_file(const CubinFile& file) {
  constexpr uint64_t kTableAlignment = 8;
  Elf64_Ehdr header = file.header;
  std::vector<CubinSection> sections = file.sections;
  std::vector<Elf64_Phdr> segments = file.segments;
  Layout before, after;
  std::vector<Moved> moved;
  // false: it does not lie behind what was placed so far
  const auto move = [&](uint64_t* offset, uint64_t old_bytes, uint64_t new_bytes, uint64_t alignment) {
    uint64_t gap = 0;
    if (!before.gap(*offset, alignment, &gap)) return false;
    Moved m{*offset, *offset + old_bytes, after.place(new_bytes, alignment, gap), 0};
    m.new_end = m.new_begin + new_bytes;
    before.place(old_bytes, alignment, gap);
    *offset = m.new_begin;
    moved.push_back(m);
    return true;
  };
  for (size_t i = 1; i < sections.size(); ++i) {
    Elf64_Shdr& s = sections[i].header;
    if (!move(&s.sh_offset, bytes_in_file(s), sections[i].bytes.size(), s.sh_addralign))
      return unusual("its sections are not in the order of their table");
    if (bytes_in_file(s)) s.sh_size = sections[i].bytes.size();
  }
  const uint64_t table = sections.size() * sizeof(Elf64_Shdr), headers = segments.size() * sizeof(Elf64_Phdr);
  if (!move(&header.e_shoff, table, table, kTableAlignment) ||
      (headers && !move(&header.e_phoff, headers, headers, kTableAlignment)))
    return unusual("its tables are not at its end");
  for (Elf64_Phdr& segment : segments)
    if (!move_segment(moved, &segment)) return unusual("a segment is not made of whole sections");
  std::vector<uint8_t> out(moved.back().new_end);
  put(&out, 0, header);
  for (size_t i = 0; i < sections.size(); ++i) {
    std::copy(sections[i].bytes.begin(), sections[i].bytes.end(),
              out.begin() + int64_t(sections[i].header.sh_offset));
    put(&out, header.e_shoff + i * sizeof(Elf64_Shdr), sections[i].header);
  }
  for (size_t i = 0; i < segments.size(); ++i)
    put(&out, header.e_phoff + i * sizeof(Elf64_Phdr), segments[i]);
  return out;
}

}  // namespace tessera::image
