// A residual block on cuDNN: `resnet_block train` repeats training steps (forward, backward, momentum), `resnet_block serve` answers
// requests that arrive at random (logarithms of the classes' probabilities), `resnet_block verify` compares both with the host. An
// ordinary CUDA program, linked with libcudnn.so.9.
#include "model.cuh"
#include "reference.h"

namespace {

using namespace samples;
using namespace samples::resnet;

// Images that can be told apart: a pattern of their class, and noise.
class Images {
 public:
  Images(const Shape& shape, uint64_t seed) : shape_(shape), seed_(seed) {}
  // Batch number `index`, and its classes.
  void write(int64_t index, float* image, int* target) const {
    Random random{seed_ * 1000003 + uint64_t(index)};
    for (int b = 0; b < shape_.batch; ++b) {
      target[b] = int(random.next() % uint64_t(shape_.classes));
      Random pattern{seed_ * 7919 + uint64_t(target[b])};
      float* out = image + size_t(b) * shape_.image();
      for (size_t i = 0; i < shape_.image(); ++i) out[i] = pattern.symmetric() + 0.5f * random.symmetric();
    }
  }

 private:
  Shape shape_;
  uint64_t seed_;
};

struct Batch {  // pinned
  float* image = nullptr;
  int* target = nullptr;
};
Batch make_batch(const Shape& shape) {
  Batch batch;
  CUDA_CHECK(cudaMallocHost(&batch.image, shape.images() * sizeof(float)));
  CUDA_CHECK(cudaMallocHost(&batch.target, size_t(shape.batch) * sizeof(int)));
  return batch;
}

class Trainer {
 public:
  Trainer(const Shape& shape, uint64_t seed)
      : model_(shape, seed, true), images_(shape, seed), passes_(shape.graph) {
    for (Batch& slot : slots_) slot = make_batch(shape);
  }
  cudaStream_t stream() const { return model_.stream(); }
  // The loop waits for the step that had this slot.
  void enqueue_step(int64_t step) {
    const Batch& slot = slots_[step % kStepsAhead];
    images_.write(step, slot.image, slot.target);
    model_.set_images(slot.image);
    model_.set_targets(slot.target);
    passes_.run(step, stream(), [&] { model_.differentiate(); });
    model_.update();
  }
  void add_state(Checksum& sum) const {
    add_floats(sum, model_.parameters(), model_.layout().count, stream());
    add_floats(sum, model_.loss(), 1, stream());
  }
  Model& model() { return model_; }
  const Batch& batch(int64_t step) const { return slots_[step % kStepsAhead]; }

 private:
  Model model_;
  Images images_;
  CapturedSteps passes_;
  Batch slots_[kStepsAhead];
};

class Service {
 public:
  Service(const Shape& shape, uint64_t seed) : model_(shape, seed, false), images_(shape, seed) {
    for (Batch& input : inputs_) input = make_batch(shape);
    CUDA_CHECK(cudaMallocHost(&output_, output_bytes()));
  }
  void prepare(int input) { images_.write(input, inputs_[input].image, inputs_[input].target); }
  void run(int input) {
    image_ = inputs_[input].image;
    model_.set_images(image_);
    model_.forward();
    CUDA_CHECK(cudaMemcpyAsync(output_, model_.logarithms(), output_bytes(), cudaMemcpyDeviceToHost,
                               model_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));
  }
  const float* output() const { return output_; }
  size_t output_bytes() const { return model_.shape().scores() * sizeof(float); }
  double largest_error() const {
    const Shape& s = model_.shape();
    const Reference reference(s, host_copy(model_.parameters(), model_.layout().count));
    const Values wanted = reference.logarithms({image_, image_ + s.images()}, false);
    double worst = 0;
    for (size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::abs(wanted[i] - output_[i]));
    return worst;
  }

 private:
  Model model_;
  Images images_;
  Batch inputs_[kInputs];
  const float* image_ = nullptr;  // of the last request
  float* output_ = nullptr;
};

int verify(const Shape& shape, uint64_t seed) {
  Trainer trainer(shape, seed);
  Reference reference(shape, host_copy(trainer.model().parameters(), trainer.model().layout().count));
  const Batch& batch = trainer.batch(0);  // written by the first step
  return verify_training(trainer, reference.parameters, 1e-2, [&] {
    return reference.loss({batch.image, batch.image + shape.images()},
                          {batch.target, batch.target + shape.batch});
  });
}

void check(const Shape&) {}  // all sizes go together

}  // namespace

int main(int argc, char** argv) {
  const Network<Shape> network{"A residual block on cuDNN.",
                               "of weights and images (default 1)",
                               {{"train", {8, 8, 12, 10}, {64, 64, 56, 100}},
                                {"serve", {2, 8, 12, 10}, {8, 64, 56, 100}},
                                {"verify", {3, 4, 7, 5}, {3, 4, 7, 5}}},
                               {{"--batch", &Shape::batch, "images computed together"},
                                {"--channels", &Shape::channels, "of an image and of the block"},
                                {"--size", &Shape::size, "height and width of an image"},
                                {"--classes", &Shape::classes, "that are told apart"},
                                {"--graph", &Shape::graph, "training steps that are launches of one CUDA graph"}},
                               check,
                               verify};
  return run<Trainer, Service>(network, argc, argv);
}
