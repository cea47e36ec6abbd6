// A small decoder on cuBLAS and cuBLASLt: `transformer train` repeats training steps (forward, backward, Adam), `transformer serve`
// answers requests that arrive at random (the probabilities of the next token), `transformer verify` compares both with the host,
// `transformer generate` writes one token after another, always the most likely one.
// An ordinary CUDA program, linked with libcublas.so.13 and libcublasLt.so.13.
#include <algorithm>
#include <set>

#include "model.cuh"
#include "reference.h"

namespace {

using namespace samples;
using namespace samples::transformer;

// Tokens that can be learnt: each follows from the one before it by a rule, from a start of its own in each sequence.
class Text {
 public:
  Text(const Shape& shape, uint64_t seed) : shape_(shape), seed_(seed) {}
  // Sequences of number `index`, and the tokens that follow.
  void write(int64_t index, int* token, int* target) const {
    Random random{seed_ * 1000003 + uint64_t(index)};
    for (int b = 0; b < shape_.batch; ++b) {
      uint64_t next = random.next() % uint64_t(shape_.vocabulary);
      for (int t = 0; t < shape_.length; ++t) {
        token[b * shape_.length + t] = int(next);
        next = (next * 5 + 3) % uint64_t(shape_.vocabulary);
        target[b * shape_.length + t] = int(next);
      }
    }
  }

 private:
  Shape shape_;
  uint64_t seed_;
};

int* pinned_tokens(const Shape& shape) {
  int* tokens = nullptr;
  CUDA_CHECK(cudaMallocHost(&tokens, size_t(shape.tokens()) * sizeof(int)));
  return tokens;
}

class Trainer {
 public:
  Trainer(const Shape& shape, uint64_t seed)
      : model_(shape, seed, true), text_(shape, seed), passes_(shape.graph) {
    for (Slot& slot : slots_) slot = {pinned_tokens(shape), pinned_tokens(shape)};
  }
  cudaStream_t stream() const { return model_.stream(); }
  // The loop waits for the step that had this slot.
  void enqueue_step(int64_t step) {
    const Slot& slot = slots_[step % kStepsAhead];
    text_.write(step, slot.token, slot.target);
    model_.set_tokens(slot.token);
    model_.set_targets(slot.target);
    passes_.run(step, stream(), [&] { model_.differentiate(); });
    model_.update(step);
  }
  void add_state(Checksum& sum) const {
    add_floats(sum, model_.parameters(), model_.layout().count, stream());
    add_floats(sum, model_.loss(), 1, stream());
  }
  Model& model() { return model_; }
  const Text& text() const { return text_; }

 private:
  struct Slot {
    int *token, *target;
  };
  Model model_;
  Text text_;
  CapturedSteps passes_;
  Slot slots_[kStepsAhead];
};

class Service {
 public:
  Service(const Shape& shape, uint64_t seed)
      : model_(shape, seed, false), text_(shape, seed), unused_(pinned_tokens(shape)) {
    for (int*& tokens : inputs_) tokens = pinned_tokens(shape);
    device_output_ = device_array<float>(output_count());
    CUDA_CHECK(cudaMallocHost(&output_, output_bytes()));
  }
  void prepare(int input) { text_.write(input, inputs_[input], unused_); }
  void run(int input) {
    token_ = inputs_[input];
    model_.set_tokens(token_);
    model_.predict(device_output_);
    CUDA_CHECK(
        cudaMemcpyAsync(output_, device_output_, output_bytes(), cudaMemcpyDeviceToHost, model_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));
  }
  const float* output() const { return output_; }
  size_t output_bytes() const { return output_count() * sizeof(float); }
  double largest_error() const;

 private:
  size_t output_count() const { return size_t(model_.shape().batch) * size_t(model_.shape().vocabulary); }
  Model model_;
  Text text_;
  int *inputs_[kInputs], *unused_;
  const int* token_ = nullptr;  // of the last request
  float *device_output_ = nullptr, *output_ = nullptr;
};

Reference reference_of(const Model& model) {
  return {model.shape(), host_copy(model.parameters(), model.layout().count)};
}

double Service::largest_error() const {
  const Shape& s = model_.shape();
  Values logits = reference_of(model_).logits({token_, token_ + s.tokens()});
  double worst = 0;
  for (int b = 0; b < s.batch; ++b) {
    double* row = &logits[size_t(((b + 1) * s.length - 1) * s.vocabulary)];
    Reference::softmax(row, s.vocabulary);
    for (int c = 0; c < s.vocabulary; ++c)
      worst = std::max(worst, std::abs(row[c] - output_[b * s.vocabulary + c]));
  }
  return worst;
}

int verify(const Shape& shape, uint64_t seed) {
  Trainer trainer(shape, seed);
  std::vector<int> token(size_t(shape.tokens())), target(token.size());
  trainer.text().write(0, token.data(), target.data());
  Reference reference = reference_of(trainer.model());
  return verify_training(trainer, reference.parameters, 1e-3, [&] { return reference.loss(token, target); });
}

// Each sequence goes on by its most likely token, and the oldest of its window is forgotten. What is printed depends on every
// bit of every probability only where two are nearly equal, so the sum is over the probabilities too.
class Generator {
 public:
  Generator(const Shape& shape, uint64_t seed)
      : model_(shape, seed, false), window_(pinned_tokens(shape)), passes_(shape.graph) {
    int* unused = pinned_tokens(shape);
    Text(shape, seed).write(0, window_, unused);
    device_output_ = device_array<float>(outputs());
    CUDA_CHECK(cudaMallocHost(&output_, outputs() * sizeof(float)));
  }
  // One token more of each sequence.
  void step(int64_t index) {
    const Shape& s = model_.shape();
    model_.set_tokens(window_);
    passes_.run(index, model_.stream(), [&] { model_.predict(device_output_); });
    CUDA_CHECK(cudaMemcpyAsync(output_, device_output_, outputs() * sizeof(float), cudaMemcpyDeviceToHost,
                               model_.stream()));
    CUDA_CHECK(cudaStreamSynchronize(model_.stream()));
    probabilities_.add(output_, outputs() * sizeof(float));
    for (int b = 0; b < s.batch; ++b) {
      const float* row = output_ + b * s.vocabulary;
      const int token = int(std::max_element(row, row + s.vocabulary) - row);
      int* window = window_ + b * s.length;
      std::copy(window + 1, window + s.length, window);
      window[s.length - 1] = token;
      tokens_.add(&token, sizeof token);
      seen_.insert(token);
    }
  }
  void report() const {
    std::printf("different_tokens=%zu probabilities=%016llx checksum=%016llx\n", seen_.size(),
                (unsigned long long)probabilities_.value, (unsigned long long)tokens_.value);
  }

 private:
  size_t outputs() const { return size_t(model_.shape().batch) * size_t(model_.shape().vocabulary); }
  Model model_;
  int* window_;
  CapturedSteps passes_;
  float *device_output_ = nullptr, *output_ = nullptr;
  Checksum tokens_, probabilities_;
  std::set<int> seen_;
};

int generate(const Network<Shape>& network, int argc, char** argv) {
  int64_t tokens = 10'000, seed = 1;
  std::string preset = "auto", csv;
  std::vector<int64_t> given(network.sizes.size());
  std::vector<Option> options = {{"--tokens", &tokens, "of all sequences together (default 10000)"},
                                 {"--seed", &seed, "of weights and text (default 1)"},
                                 {"--csv", &csv, "file: a line per step, as soon as it is done"},
                                 {"--preset", &preset, "sizes: auto, soft or gpu"}};
  for (size_t i = 0; i < given.size(); ++i)
    options.push_back({network.sizes[i].name, &given[i], network.sizes[i].help});
  parse_options(argc - 1, argv + 1, network.purpose, options);
  const Shape shape = shape_of(network, "generate", preset, given);
  Generator generator(shape, uint64_t(seed));
  StepLog log(csv);
  for (int64_t step = 0; step * shape.batch < tokens; ++step) {
    generator.step(step);
    log.finished(step);
  }
  generator.report();
  return 0;
}

void check(const Shape& shape) {
  if (shape.width % shape.heads != 0) fail("--width", "is no multiple of --heads");
}

}  // namespace

int main(int argc, char** argv) {
  const Network<Shape> network{
      "A small decoder on cuBLAS.",
      "of weights and text (default 1)",
      {{"train", {8, 32, 32, 2, 64, 1, 64}, {16, 256, 512, 8, 2048, 6, 4096}},
       {"serve", {2, 16, 32, 2, 64, 1, 64}, {8, 128, 512, 8, 2048, 6, 4096}},
       {"generate", {16, 16, 32, 2, 64, 1, 64}, {16, 128, 512, 8, 2048, 6, 4096}},
       {"verify", {2, 8, 12, 3, 20, 2, 18}, {2, 8, 12, 3, 20, 2, 18}}},
      {{"--batch", &Shape::batch, "sequences computed together"},
       {"--length", &Shape::length, "tokens of a sequence"},
       {"--width", &Shape::width, "of a token's vector"},
       {"--heads", &Shape::heads, "of attention"},
       {"--hidden", &Shape::hidden, "width of the feed-forward part"},
       {"--layers", &Shape::layers, "of the decoder"},
       {"--vocabulary", &Shape::vocabulary, "different tokens"},
       {"--graph", &Shape::graph, "training steps that are launches of one CUDA graph"}},
      check,
      verify};
  if (argc > 1 && std::string(argv[1]) == "generate") return generate(network, argc, argv);
  return run<Trainer, Service>(network, argc, argv);
}
