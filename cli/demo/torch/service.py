"""The service of `tessera demo --workload torch`: ResNet-50 in stock PyTorch, batch 1, bf16, as one CUDA graph. A request is an image
from the host and its answer there."""
import models
import programs
import torch


class Network:
    def __init__(self, seed, cpu=False):
        self.place, self.side = models.Place(cpu), 64 if cpu else 224
        torch.backends.cudnn.deterministic = True
        net = self.place.build(seed, lambda: models.resnet(cpu)).to(self.place.dtype).eval()
        self.source = torch.Generator().manual_seed(seed)
        self.image = torch.zeros(1, 3, self.side, self.side, device=self.place.device, dtype=self.place.dtype)
        net, self.image = (x.to(memory_format=torch.channels_last) for x in (net, self.image))
        with torch.no_grad():
            self.replay = self.place.graphed(lambda: net(self.image))

    def input(self):
        image = torch.randn(1, 3, self.side, self.side, generator=self.source).to(self.place.dtype)
        return image if self.place.cpu else image.pin_memory()

    def request(self, image):
        with torch.no_grad():
            self.image.copy_(image, non_blocking=True)
            return self.replay().float().cpu().numpy()


if __name__ == "__main__":
    programs.serve(Network, __doc__)
