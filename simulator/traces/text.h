// Bytes of a file that may be compressed with gzip, as a stream. For the readers of this folder.
#pragma once

#include <istream>
#include <memory>
#include <streambuf>
#include <string>

#include "base/result.h"

namespace tessera::simulator::traces {

// The text of a file, decompressed as it is read: a few KiB at a time. Owns the descriptor.
class FileText {
 public:
  static base::Result<FileText> open(const std::string& path);
  FileText(FileText&&) noexcept;
  FileText& operator=(FileText&&) noexcept;
  ~FileText();

  std::istream& stream() { return *stream_; }
  // Empty, or why the bytes ended early: compressed data that are broken or cut off.
  std::string problem() const;

 private:
  FileText();
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<std::istream> stream_;
};

}  // namespace tessera::simulator::traces
