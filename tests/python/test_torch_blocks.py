"""Rules that treat parameters in blocks, behind a method: their options and their state."""

import copy

import support
from support import Case, abar, make_net, train, weights_of


class Blocks(Case):
    def test_state_dicts_go_on_bit_for_bit(self):
        model = make_net()
        optimizer = abar.torch.MAC(model, 0.01, rule="shampoo", shampoo_eps=1e-2, shampoo_freq=2)
        train(model, optimizer, 5)
        kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        train(model, optimizer, 5, first=5)
        other = make_net(seed=1)
        loaded = abar.torch.MAC(other, 0.01, rule="shampoo")
        other.load_state_dict(kept[0])
        loaded.load_state_dict(kept[1])
        train(other, loaded, 5, first=5)
        self.assert_same(weights_of(other), weights_of(model), "shampoo")

    def test_schedulers_find_the_options_of_the_rule(self):
        optimizer = abar.torch.MAC(make_net(), 0.01, rule="shampoo", beta1=0.8)
        self.assertEqual(optimizer.param_groups[0]["beta1"], 0.8)


if __name__ == "__main__":
    support.main()
