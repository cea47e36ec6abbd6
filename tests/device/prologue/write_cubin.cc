#include "tests/device/prologue/write_cubin.h"

#include <algorithm>
#include <cstring>

namespace tessera::image {
namespace {

constexpr uint64_t kMostGapBytes = 4096;

base::Error unusual(const char* what) {
  return base::error(base::Code::kUnsupported, std::string("cubin: ") + what);
}

uint64_t aligned(uint64_t offset, uint64_t alignment) {
  return alignment > 1 ? (offset + alignment - 1) / alignment * alignment : offset;
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

base::Result<std::vector<uint8_t>> write_cubin_file(const CubinFile& file) {
  // Newer compilers let the tables begin where the last section ends, at four bytes.
  const uint64_t table_alignment = file.header.e_shoff % 8 ? 4 : 8;
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
  if (!move(&header.e_shoff, table, table, table_alignment) ||
      (headers && !move(&header.e_phoff, headers, headers, table_alignment)))
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
