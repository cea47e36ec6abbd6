// Paths, takeover, identity; and the client's handshake against a hand-written peer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/units.h"
#include "ipc/channel/client.h"
#include "ipc/channel/memfd.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/server.h"

namespace tessera::ipc {
namespace {

class Socket : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/d/tesserad.sock";
  }
  void TearDown() override { (void)!std::system(("rm -rf " + folder_).c_str()); }
  bool exists(const std::string& path) {
    struct stat st;
    return lstat(path.c_str(), &st) == 0;
  }
  std::string folder_, path_;
};

TEST_F(Socket, PathIsChosenFromTheEnvironment) {
  setenv("TESSERA_SOCKET", "/tmp/some.sock", 1);
  EXPECT_EQ(default_socket_path().value(), "/tmp/some.sock");
  setenv("TESSERA_SOCKET", std::string(200, 'x').c_str(), 1);
  ASSERT_FALSE(default_socket_path().ok());
  EXPECT_NE(default_socket_path().error().text.find("shorter"), std::string::npos);
  unsetenv("TESSERA_SOCKET");
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(default_socket_path().value(), "/run/user/7/tessera/tesserad.sock");
  unsetenv("XDG_RUNTIME_DIR");
  std::string expected = geteuid() == 0 ? "/run/tessera/tesserad.sock"
                                        : "/tmp/tessera-" + std::to_string(geteuid()) + "/tesserad.sock";
  EXPECT_EQ(default_socket_path().value(), expected);
}

// Not ours: a folder that others can write, one of another user, a link, a file.
TEST_F(Socket, AFolderThatSomebodyElsePutThereIsSkipped) {
  const std::string system = folder_ + "/system.sock", own = folder_ + "/squatted/tesserad.sock";
  const std::string squatted = folder_ + "/squatted";
  std::string why;
  EXPECT_EQ(own_or_system_socket(own, system, &why), own);  // the machine has none
  std::ofstream(system) << "";
  EXPECT_EQ(own_or_system_socket(own, system, &why), system);  // and this user has none
  mkdir(squatted.c_str(), 0700);
  std::ofstream(own) << "";
  EXPECT_EQ(own_or_system_socket(own, system, &why), own);
  EXPECT_EQ(why, "");

  const auto skips = [&](const char* words) {
    why = "";
    return own_or_system_socket(own, system, &why) == system && why.find(words) != why.npos &&
           !check_socket_folder(own).ok() && !prepare_socket_folder(own).ok();
  };
  chmod(squatted.c_str(), 0777);
  EXPECT_TRUE(skips("written by others")) << why;
  chmod(squatted.c_str(), 0700);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(squatted.c_str(), 65534, 65534), 0);
    EXPECT_TRUE(skips("another user (uid 65534)")) << why;
    ASSERT_EQ(chown(squatted.c_str(), 0, 0), 0);
  }
  ASSERT_EQ(rename(squatted.c_str(), (folder_ + "/elsewhere").c_str()), 0);
  ASSERT_EQ(symlink("elsewhere", squatted.c_str()), 0);
  EXPECT_TRUE(skips("not a folder")) << why;
  unlink(squatted.c_str());
  std::ofstream(squatted) << "";
  EXPECT_TRUE(skips("not a folder")) << why;
}

TEST_F(Socket, OneServedByAnotherUserIsNotTrusted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: a server of another user";
  chmod(folder_.c_str(), 01777);
  const std::string path = folder_ + "/tesserad.sock";
  base::ScopedFd server(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  ASSERT_EQ(bind(server.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const pid_t child = fork();  // who calls listen(2) is the server's identity
  if (child == 0) _exit(setuid(65534) != 0 || listen(server.get(), 1) != 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const auto attached = attach(path, {});
  ASSERT_FALSE(attached.ok());
  EXPECT_EQ(attached.error().code, base::Code::kPermission);
  EXPECT_NE(attached.error().text.find("another user (uid 65534)"), std::string::npos)
      << attached.error().text;
}

TEST_F(Socket, ListensInAPrivateFolderAndRemovesItsFiles) {
  {
    auto listen = listen_on(path_);
    ASSERT_TRUE(listen.ok()) << listen.error().text;
    struct stat st;
    ASSERT_EQ(stat(path_.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    ASSERT_EQ(stat((folder_ + "/d").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
    auto second = listen_on(path_);
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().text.find("another tesserad"), std::string::npos);
    EXPECT_TRUE(exists(path_));  // the loser removed nothing
  }
  EXPECT_FALSE(exists(path_));
  EXPECT_FALSE(exists(path_ + ".lock"));
}

TEST_F(Socket, TakesOverWhatADeadDaemonLeft) {
  pid_t child = fork();
  if (child == 0) {
    auto listen = listen_on(path_);
    _exit(listen.ok() ? 0 : 1);  // no destructors: as if killed
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(exists(path_));
  auto listen = listen_on(path_);
  EXPECT_TRUE(listen.ok()) << listen.error().text;
}

TEST_F(Socket, RefusesFilesAndStrangersAndOpenFolders) {
  mkdir((folder_ + "/d").c_str(), 0700);
  std::ofstream(path_) << "precious";
  auto listen = listen_on(path_);
  ASSERT_FALSE(listen.ok());
  EXPECT_NE(listen.error().text.find("not a socket"), std::string::npos);
  EXPECT_TRUE(exists(path_));
  unlink(path_.c_str());

  base::ScopedFd other(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));  // alive, but without our lock
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path_.c_str());
  ASSERT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(other.get(), 1), 0);
  ASSERT_FALSE(listen_on(path_).ok());
  other.reset();

  chmod((folder_ + "/d").c_str(), 0777);
  listen = listen_on(path_);
  ASSERT_FALSE(listen.ok());
  EXPECT_NE(listen.error().text.find("chmod"), std::string::npos);
  EXPECT_EQ(attach(path_, {}).error().code, base::Code::kPermission);
  EXPECT_FALSE(listen_on("/nonexistent/a/b/c.sock").ok());
}

TEST_F(Socket, PeerIdentityComesFromTheKernel) {
  auto listen = listen_on(path_);
  ASSERT_TRUE(listen.ok());
  EXPECT_EQ(accept_peer(listen->fd()).error().code, base::Code::kUnavailable);
  pid_t child = fork();
  if (child == 0) {
    (void)attach(path_, {}, 10);
    _exit(0);
  }
  pollfd p{listen->fd(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, 5000), 1);
  auto peer = accept_peer(listen->fd());
  ASSERT_TRUE(peer.ok()) << peer.error().text;
  EXPECT_EQ(peer->identity.pid, child);
  EXPECT_EQ(peer->identity.uid, geteuid());
  pollfd ended{peer->process.get(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 5000), 1);  // its process ended
  waitpid(child, nullptr, 0);
}

TEST_F(Socket, NoDaemonIsAClearQuickError) {
  auto a = attach(path_, {});
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(a.error().code, base::Code::kUnavailable);
  EXPECT_NE(a.error().text.find("tesserad"), std::string::npos);
  EXPECT_EQ(attach(std::string(300, 'x'), {}).error().code, base::Code::kInvalid);
  EXPECT_EQ(query(path_).error().code, base::Code::kUnavailable);
}

// A daemon that answers a Hello as the test says.
class FakeDaemon {
 public:
  FakeDaemon(const std::string& path, const std::function<void(int socket, const ClientMemory&)>& answer)
      : listen_(std::move(listen_on(path).value())), thread_([this, answer] {
          pollfd p{listen_.fd(), POLLIN, 0};
          ASSERT_EQ(poll(&p, 1, 5000), 1);
          auto peer = accept_peer(listen_.fd());
          ASSERT_TRUE(peer.ok());
          pollfd q{peer->socket.get(), POLLIN, 0};
          poll(&q, 1, 5000);
          Packet hello;
          EXPECT_EQ(receive_packet(peer->socket.get(), 0, &hello), Receive::kPacket);
          auto memory = create_client_memory(5, 1, 2, {abi::kLossHold, 77});
          answer(peer->socket.get(), *memory);
          poll(&q, 1, 5000);  // until the client has what it wants
        }) {}
  ~FakeDaemon() { thread_.join(); }

 private:
  ListenSocket listen_;
  std::thread thread_;
};

abi::Welcome welcome() {
  abi::Welcome w{};
  w.header = make_header(abi::kWelcome, sizeof w);
  w.client_id = 1;
  w.priority = 2;
  w.daemon_epoch = 5;
  return w;
}

TEST_F(Socket, HandshakeMapsRegionAndPulse) {
  FakeDaemon daemon(path_, [](int socket, const ClientMemory& m) {
    abi::Welcome w = welcome();
    w.now_ns = base::now_ns();
    int fds[] = {m.region_fd.get(), m.wake.get(), m.pulse_fd.get()};
    send_packet(socket, &w, sizeof w, fds, 3);
  });
  auto a = attach(path_, {.priority = 2, .name = "me"}, 5000);
  ASSERT_TRUE(a.ok()) << a.error().text;
  EXPECT_EQ(a->priority, 2u);
  EXPECT_EQ(a->daemon_epoch, 5u);
  EXPECT_EQ(a->on_daemon_loss, uint32_t(abi::kLossHold));
  EXPECT_EQ(a->guard_ns, 77u);
  EXPECT_EQ(a->pulse()->client_id, 1u);
  EXPECT_TRUE(notify(*a));
  // A host that closes every descriptor and reuses the numbers: nothing may be written into its file.
  std::string victim = folder_ + "/victim";
  int number = a->wake.get();
  base::ScopedFd file(open(victim.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(dup2(file.get(), number), number);
  EXPECT_FALSE(descriptors_intact(*a));
  EXPECT_FALSE(notify(*a));
  struct stat st;
  ASSERT_EQ(stat(victim.c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 0);
}

TEST_F(Socket, TheOperatorsPriorityArrivesWithANewPage) {
  FakeDaemon daemon(path_, [](int socket, const ClientMemory& m) {
    abi::Welcome w = welcome();
    int fds[] = {m.region_fd.get(), m.wake.get(), m.pulse_fd.get()};
    send_packet(socket, &w, sizeof w, fds, 3);
    abi::SetPriority down{make_header(abi::kSetPriority, sizeof down), 0, 0};
    send_packet(socket, &down, sizeof down);
    auto page = create_client_memory(5, 1, 4, {});
    int fd = page->pulse_fd.get();
    abi::SetPriority up{make_header(abi::kSetPriority, sizeof up), 4, 0};
    send_packet(socket, &up, sizeof up, &fd, 1);
    up.priority = 9;
    send_packet(socket, &up, sizeof up);
    // Closed before the client has read and answered, the socket would lose what is still in it.
    char answer[256];
    pollfd p{socket, POLLIN, 0};
    while (poll(&p, 1, 5000) == 1 && recv(socket, answer, sizeof answer, 0) > 0) {
    }
  });
  auto a = attach(path_, {.priority = 2}, 5000);
  ASSERT_TRUE(a.ok()) << a.error().text;
  auto next = [&] {
    pollfd p{a->socket.get(), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 5000), 1);
    return next_event(*a);
  };
  PeerEvent down = next();
  EXPECT_EQ(down.kind, PeerEvent::Kind::kPriority);
  EXPECT_EQ(down.priority, 0u);
  EXPECT_FALSE(down.page.valid());
  PeerEvent up = next();
  EXPECT_EQ(up.kind, PeerEvent::Kind::kPriority);
  EXPECT_EQ(up.priority, 4u);
  ASSERT_TRUE(up.page.valid());
  up.page.as<abi::PulsePage>()->busy = 1;  // writable
  EXPECT_TRUE(acknowledge_pulse(*a).ok());
  EXPECT_EQ(next().kind, PeerEvent::Kind::kLost);  // an impossible priority
}

TEST_F(Socket, WhatIsUnknownOrAPeersNonsenseIsSkipped) {
  FakeDaemon daemon(path_, [](int socket, const ClientMemory& m) {
    abi::Welcome w = welcome();
    int fds[] = {m.region_fd.get(), m.wake.get(), m.pulse_fd.get()};
    send_packet(socket, &w, sizeof w, fds, 3);
    const abi::MessageHeader unknown = make_header(abi::MessageType(4711), sizeof unknown);
    for (int i = 0; i < 20; ++i) send_packet(socket, &unknown, sizeof unknown);
    for (const bool scribbled : {true, false}) {
      auto peer = create_client_memory(5, scribbled ? 8 : 9, 4, {});
      int fd = peer->pulse_fd.get();
      if (scribbled) {
        ASSERT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
      }
      ASSERT_TRUE(seal_pulse(*peer).ok());
      abi::PeerPulse pulse{make_header(abi::kPeerPulse, sizeof pulse), scribbled ? 8u : 9u, 4, 0};
      send_packet(socket, &pulse, sizeof pulse, &fd, 1);
    }
    char answer[256];
    pollfd p{socket, POLLIN, 0};
    while (poll(&p, 1, 5000) == 1 && recv(socket, answer, sizeof answer, 0) > 0) {
    }
  });
  auto a = attach(path_, {.priority = 2}, 5000);
  ASSERT_TRUE(a.ok()) << a.error().text;
  PeerEvent event;
  while (event.kind == PeerEvent::Kind::kNothing) {
    pollfd p{a->socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&p, 1, 5000), 1);
    event = next_event(*a);
  }
  EXPECT_EQ(event.kind, PeerEvent::Kind::kPeerPulse);
  EXPECT_EQ(event.client_id, 9u);
}

TEST_F(Socket, BadWelcomesAreRefused) {
  struct Case {
    const char* what;
    std::function<void(int, const ClientMemory&)> answer;
    base::Code code;
  };
  const auto with_clock = [](uint64_t (*now_ns)()) {
    return [now_ns](int s, const ClientMemory& m) {
      abi::Welcome w = welcome();
      w.now_ns = now_ns();
      int fds[] = {m.region_fd.get(), m.wake.get(), m.pulse_fd.get()};
      send_packet(s, &w, sizeof w, fds, 3);
    };
  };
  const Case cases[] = {
      {"no descriptors",
       [](int s, const ClientMemory&) {
         abi::Welcome w = welcome();
         send_packet(s, &w, sizeof w);
       },
       base::Code::kInvalid},
      {"another version",
       [](int s, const ClientMemory&) {
         abi::Welcome w = welcome();
         w.header.compat_version = abi::kVersion + 1;
         send_packet(s, &w, sizeof w);
       },
       base::Code::kVersion},
      {"another clock, which is ahead", with_clock([] { return base::now_ns() + 10 * base::kNsPerMs; }),
       base::Code::kUnsupported},
      {"another clock, which is behind", with_clock([] { return uint64_t(1); }), base::Code::kUnsupported},
      {"memory that is not sealed",
       [](int s, const ClientMemory& m) {
         abi::Welcome w = welcome();
         auto soft = create_memfd("soft", abi::kRegionBytes, 0);
         int fds[] = {soft->get(), m.wake.get(), m.pulse_fd.get()};
         send_packet(s, &w, sizeof w, fds, 3);
       },
       base::Code::kInvalid},
      {"refused",
       [](int s, const ClientMemory&) {
         abi::Refused r{make_header(abi::kRefused, sizeof r), uint32_t(base::Code::kExhausted), "full"};
         send_packet(s, &r, sizeof r);
       },
       base::Code::kExhausted},
      {"garbage", [](int s, const ClientMemory&) { send(s, "garbage", 7, 0); }, base::Code::kInvalid},
      {"end of file", [](int s, const ClientMemory&) { shutdown(s, SHUT_RDWR); }, base::Code::kUnavailable},
  };
  for (const Case& c : cases) {
    FakeDaemon daemon(path_, c.answer);
    auto a = attach(path_, {.priority = 2}, 5000);
    ASSERT_FALSE(a.ok()) << c.what;
    EXPECT_EQ(a.error().code, c.code) << c.what << ": " << a.error().text;
  }
}

TEST_F(Socket, ADaemonThatDoesNotAnswerCostsTheTimeoutOnly) {
  auto listen = listen_on(path_);
  auto a = attach(path_, {}, 20);
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(a.error().code, base::Code::kUnavailable);
}

}  // namespace
}  // namespace tessera::ipc
