// One extended resource of the node, as a device plugin of the kubelet: its socket, its registration, what it tells of its
// devices and what it hands out. Made and called by one thread; gRPC calls Service's functions from threads of its own.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "integrations/kubernetes/device_plugin.grpc.pb.h"
#include "integrations/kubernetes/shares.h"

namespace tessera::kubernetes {

// The identity of the file at a path: a file that was made anew differs. A path without a file equals only itself.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  timespec changed = {};

  static FileId of(const std::string& path);
  bool exists() const { return inode != 0; }
  bool operator==(const FileId& other) const;
};

class Resource final : public v1beta1::DevicePlugin::Service {
 public:
  // `folder`: the kubelet's, where kubelet.sock is. `by_cdi`: hand out CDI names, else `edits` themselves.
  Resource(std::string folder, Share share, Edits edits, bool by_cdi);
  ~Resource() override;

  // Serves and registers where that is not so (any more): the kubelet empties the folder when it starts. Returns what
  // stands in the way, "" if nothing does.
  std::string ensure_registered();
  void set_healthy(bool healthy);

 private:
  bool serve();
  void stop();
  std::string register_with_kubelet();

  grpc::Status GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                      v1beta1::DevicePluginOptions*) override;
  grpc::Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override;
  grpc::Status Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                        v1beta1::AllocateResponse* response) override;

  const std::string folder_, endpoint_;  // file name of the socket
  const Share share_;
  const Edits edits_;
  const bool by_cdi_;
  std::unique_ptr<grpc::Server> server_;
  FileId socket_, kubelet_;  // that we serve on; that we are registered with

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool healthy_ = false, stopping_ = false;
};

}  // namespace tessera::kubernetes
