// Functions that device code may call without defining them: vprintf, __assertfail, malloc, free.
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {
namespace {

struct Arguments {
  Warp& w;
  const CallSite& site;
  unsigned lane;
  char* at(const Copy& c) const {
    return w.local + static_cast<size_t>(lane) * w.local_bytes + w.frame->local_base + c.local_offset;
  }
  uint64_t in(size_t i) const {
    uint64_t value = 0;
    if (i < site.in.size()) std::memcpy(&value, at(site.in[i]), std::min<uint32_t>(site.in[i].bytes, 8));
    return value;
  }
  void out(uint64_t value) const {
    if (!site.out.empty()) std::memcpy(at(site.out[0]), &value, std::min<uint32_t>(site.out[0].bytes, 8));
  }
};

// A zero-terminated text in device memory; false after a fault.
bool text_at(Warp& w, const Op* op, unsigned lane, uint64_t address, std::string* text) {
  text->clear();
  for (; text->size() < 8192; ++address) {
    const char* p = reach(w, op, Space::kGeneric, lane, address, 1, false, 1);
    if (!p) return false;
    if (!*p) return true;
    text->push_back(*p);
  }
  return true;
}

// One conversion of the format, from the argument buffer (varargs promoted, each aligned to its size).
bool print(Warp& w, const Op* op, unsigned lane, const std::string& format, uint64_t buffer,
           std::string* out) {
  uint64_t offset = 0;
  for (size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      out->push_back(format[i++]);
      continue;
    }
    size_t end = format.find_first_of("diouxXeEfFgGaAcspn%", i + 1);
    if (end == std::string::npos) {
      out->append(format, i);
      break;
    }
    std::string piece = format.substr(i, end + 1 - i);
    const char kind = piece.back();
    i = end + 1;
    if (kind == '%') {
      out->push_back('%');
      continue;
    }
    const auto fetch = [&](unsigned bytes, void* value) {
      offset = (offset + bytes - 1) & ~uint64_t{bytes - 1};
      const char* p = reach(w, op, Space::kGeneric, lane, buffer + offset, bytes, false, bytes);
      if (!p) return false;
      std::memcpy(value, p, bytes);
      offset += bytes;
      return true;
    };
    // '*' takes an int from the arguments.
    for (size_t star; (star = piece.find('*')) != std::string::npos;) {
      int n = 0;
      if (!fetch(4, &n)) return false;
      piece.replace(star, 1, std::to_string(n));
    }
    char text[1024];
    int n = 0;
    const bool is_long = piece.find('l') != std::string::npos || piece.find('j') != std::string::npos ||
                         piece.find('z') != std::string::npos || piece.find('t') != std::string::npos;
    if (std::string_view("eEfFgGaA").find(kind) != std::string_view::npos) {
      double value = 0;
      if (!fetch(8, &value)) return false;
      n = std::snprintf(text, sizeof text, piece.c_str(), value);
    } else if (kind == 's') {
      uint64_t address = 0;
      if (!fetch(8, &address)) return false;
      std::string s = "(null)";
      if (address && !text_at(w, op, lane, address, &s)) return false;
      out->append(s);
    } else if (kind == 'p') {
      uint64_t value = 0;
      if (!fetch(8, &value)) return false;
      n = std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    } else if (is_long) {
      uint64_t value = 0;
      if (!fetch(8, &value)) return false;
      n = std::snprintf(text, sizeof text, piece.c_str(), value);
    } else if (kind != 'n') {
      uint32_t value = 0;
      if (!fetch(4, &value)) return false;
      n = std::snprintf(text, sizeof text, piece.c_str(), value);
    }
    if (n > 0) out->append(text, std::min<size_t>(static_cast<size_t>(n), sizeof text - 1));
  }
  return true;
}

}  // namespace

const Op* call_builtin(Warp& w, const Op* op, const CallSite& site) {
  AllocationMap& memory = *w.block->grid->memory;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const Arguments arguments{w, site, i};
    switch (site.builtin) {
      case Builtin::kPrintf: {
        std::string format, out;
        if (!text_at(w, op, i, arguments.in(0), &format)) return nullptr;
        if (!print(w, op, i, format, arguments.in(1), &out)) return nullptr;
        std::fwrite(out.data(), 1, out.size(), stdout);
        arguments.out(static_cast<uint32_t>(out.size()));
        break;
      }
      case Builtin::kAssertFail: {
        std::string message, file, function;
        if (!text_at(w, op, i, arguments.in(0), &message) || !text_at(w, op, i, arguments.in(1), &file) ||
            !text_at(w, op, i, arguments.in(3), &function))
          return nullptr;
        const uint32_t line = static_cast<uint32_t>(arguments.in(2));
        return raise(
            w, op, FaultKind::kAssert, i, 0,
            file + ":" + std::to_string(line) + ": " + function + ": Assertion `" + message + "` failed");
      }
      case Builtin::kMalloc: {
        // Device heap blocks live until freed, across launches; the map is the only record of them.
        const uint64_t bytes = arguments.in(0);
        void* p = bytes && bytes < (uint64_t{1} << 30) ? std::aligned_alloc(16, (bytes + 15) & ~uint64_t{15})
                                                       : nullptr;
        if (p) memory.add(reinterpret_cast<uint64_t>(p), bytes, true);
        arguments.out(reinterpret_cast<uint64_t>(p));
        break;
      }
      case Builtin::kFree: {
        const uint64_t address = arguments.in(0);
        if (address && memory.remove(address)) std::free(reinterpret_cast<void*>(address));
        break;
      }
      case Builtin::kNone:
        break;
    }
  }
  if (site.builtin == Builtin::kPrintf) std::fflush(stdout);
  return op + 1;
}

}  // namespace tessera::softgpu::exec
