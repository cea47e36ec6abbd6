#include "simulator/traces/text.h"

#include <zlib.h>

#include <array>

#include "base/user_file.h"

namespace tessera::simulator::traces {

class FileText::Buffer : public std::streambuf {
 public:
  explicit Buffer(gzFile file) : file_(file) {}
  ~Buffer() override { gzclose_r(file_); }
  Buffer(const Buffer&) = delete;

  std::string problem() const {
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    if (code == Z_BUF_ERROR) return "the compressed data end early: is the file cut off?";
    return code == Z_OK || code == Z_STREAM_END ? "" : std::string("the compressed data are broken: ") + text;
  }

 protected:
  int_type underflow() override {
    const int n = gzread(file_, bytes_.data(), unsigned(bytes_.size()));
    if (n <= 0) return traits_type::eof();
    setg(bytes_.data(), bytes_.data(), bytes_.data() + n);
    return traits_type::to_int_type(bytes_[0]);
  }

 private:
  gzFile file_;
  std::array<char, 1 << 16> bytes_{};
};

FileText::FileText() = default;
FileText::FileText(FileText&&) noexcept = default;
FileText& FileText::operator=(FileText&&) noexcept = default;
FileText::~FileText() = default;

base::Result<FileText> FileText::open(const std::string& path) {
  auto fd = base::open_to_read(path);
  if (!fd.ok()) return fd.error();
  const gzFile file = gzdopen(fd->get(), "rb");
  if (file == nullptr) return base::error(base::Code::kExhausted, path + ": no memory to read it");
  (void)fd->release();
  gzbuffer(file, 1 << 17);
  FileText text;
  text.buffer_ = std::make_unique<Buffer>(file);
  text.stream_ = std::make_unique<std::istream>(text.buffer_.get());
  return text;
}

std::string FileText::problem() const {
  return buffer_->problem();
}

}  // namespace tessera::simulator::traces
