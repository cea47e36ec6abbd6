#include "integrations/kubernetes/resource.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace tessera::kubernetes {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

}  // namespace

FileId FileId::of(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) != 0) return {};
  return {s.st_dev, s.st_ino, s.st_ctim};
}

bool FileId::operator==(const FileId& other) const {
  return device == other.device && inode == other.inode && changed.tv_sec == other.changed.tv_sec &&
         changed.tv_nsec == other.changed.tv_nsec;
}

Resource::Resource(std::string folder, Share share, Edits edits, bool by_cdi)
    : folder_(std::move(folder)),
      endpoint_("tessera-" + share.level + ".sock"),
      share_(std::move(share)),
      edits_(std::move(edits)),
      by_cdi_(by_cdi) {}

Resource::~Resource() {
  stop();
}

void Resource::stop() {
  if (!server_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  server_->Shutdown(system_clock::now() + seconds(1));
  server_.reset();  // and its socket is gone, if it is still ours
}

bool Resource::serve() {
  stop();
  stopping_ = false;
  const std::string path = folder_ + "/" + endpoint_;
  ::unlink(path.c_str());  // of one of us that was killed
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  socket_ = FileId::of(path);
  kubelet_ = {};
  return server_ != nullptr;
}

std::string Resource::register_with_kubelet() {
  const std::string path = folder_ + "/kubelet.sock";
  const FileId kubelet = FileId::of(path);
  if (!kubelet.exists()) return path + " is not there: the kubelet does not run, or has another folder";
  const auto channel = grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials());
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(endpoint_);
  request.set_resource_name(resource_name(share_));
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + seconds(5));
  v1beta1::Empty nothing;
  const grpc::Status status = v1beta1::Registration::NewStub(channel)->Register(&context, request, &nothing);
  if (!status.ok())
    return "the kubelet does not register " + resource_name(share_) + ": " + status.error_message();
  kubelet_ = kubelet;
  return "";
}

std::string Resource::ensure_registered() {
  const std::string path = folder_ + "/" + endpoint_;
  if ((!server_ || !(FileId::of(path) == socket_)) && !serve())
    return path + " cannot be served on: is the folder there, and may we write to it?";
  return FileId::of(folder_ + "/kubelet.sock") == kubelet_ && kubelet_.exists() ? ""
                                                                                : register_with_kubelet();
}

void Resource::set_healthy(bool healthy) {
  {
    const std::lock_guard lock(mutex_);
    if (healthy_ == healthy) return;
    healthy_ = healthy;
  }
  changed_.notify_all();
}

grpc::Status Resource::GetDevicePluginOptions(grpc::ServerContext*, const v1beta1::Empty*,
                                              v1beta1::DevicePluginOptions*) {
  return grpc::Status::OK;  // neither PreStartContainer nor GetPreferredAllocation
}

grpc::Status Resource::ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty*,
                                    grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !context->IsCancelled()) {
    const bool healthy = healthy_;
    v1beta1::ListAndWatchResponse all;
    for (const std::string& id : device_ids(share_)) {
      v1beta1::Device* device = all.add_devices();
      device->set_id(id);
      device->set_health(healthy ? "Healthy" : "Unhealthy");
    }
    lock.unlock();
    if (!writer->Write(all)) return grpc::Status::OK;  // the kubelet is gone
    lock.lock();
    // Woken now and then to see whether the kubelet is gone: nothing else tells.
    while (healthy_ == healthy && !stopping_ && !context->IsCancelled()) changed_.wait_for(lock, seconds(1));
  }
  return grpc::Status::OK;
}

grpc::Status Resource::Allocate(grpc::ServerContext*, const v1beta1::AllocateRequest* request,
                                v1beta1::AllocateResponse* response) {
  const std::vector<std::string> ours = device_ids(share_);
  for (const auto& wanted : request->container_requests()) {
    for (const std::string& id : wanted.devices_ids())
      if (std::find(ours.begin(), ours.end(), id) == ours.end())
        return {grpc::StatusCode::INVALID_ARGUMENT,
                "'" + id + "' is no device of " + resource_name(share_) + ", which has " + ours.front() +
                    " to " + ours.back() + ": the kubelet asks for one of an earlier configuration"};
    v1beta1::ContainerAllocateResponse& given = *response->add_container_responses();
    if (by_cdi_) {
      given.add_cdi_devices()->set_name("tessera.dev/gpu=" + share_.level);
    } else {
      for (const auto& [name, value] : edits_.variables) (*given.mutable_envs())[name] = value;
      for (const auto& [of_container, of_node] : edits_.mounts) {
        v1beta1::Mount& mount = *given.add_mounts();
        mount.set_container_path(of_container);
        mount.set_host_path(of_node);
        mount.set_read_only(true);
      }
    }
    (*given.mutable_envs())["TESSERA_WEIGHT"] = weight_of(size_t(wanted.devices_ids_size()));
  }
  return grpc::Status::OK;
}

}  // namespace tessera::kubernetes
