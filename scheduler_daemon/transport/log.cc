#include "scheduler_daemon/transport/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "base/printable.h"
#include "base/scoped_fd.h"

namespace tessera::transport {
namespace {

// O_NONBLOCK belongs to the open file, which others have, too. So a pipe or terminal is opened once more.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {
    struct stat st {};
    if (::fstat(fd, &st) != 0) return;
    is_socket_ = S_ISSOCK(st.st_mode);
    if (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode)) return;
    const std::string name = "/proc/self/fd/" + std::to_string(fd);
    own_.reset(::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (own_.valid()) fd_ = own_.get();
  }
  // False: it would have waited, or failed.
  bool write(const char* text, size_t bytes) const {
    if (is_socket_) return ::send(fd_, text, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t(bytes);
    pollfd room{fd_, POLLOUT, 0};  // all that can be asked where it could not be opened again
    return ::poll(&room, 1, 0) == 1 && ::write(fd_, text, bytes) == ssize_t(bytes);
  }

 private:
  base::ScopedFd own_;
  int fd_;
  bool is_socket_ = false;
};

class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(int fd) : output_(fd) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (lost_ != 0) {
      const std::string loss = std::to_string(lost_) + " lines lost: nobody read them\n";
      if (!output_.write(loss.data(), loss.size())) {
        ++lost_;
        return;
      }
      lost_ = 0;
    }
    spdlog::memory_buf_t line;
    // Parts of it come from clients and files: one line, and nothing that a terminal would obey.
    const std::string text = base::printable({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    formatter_->format(shown, line);
    if (!output_.write(line.data(), line.size())) ++lost_;
  }
  void flush_() override {}

 private:
  Output output_;
  uint64_t lost_ = 0;
};

}  // namespace

std::shared_ptr<spdlog::logger> make_logger(int fd) {
  return std::make_shared<spdlog::logger>("tesserad", std::make_shared<Sink>(fd));
}

}  // namespace tessera::transport
