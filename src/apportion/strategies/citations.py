"""Whose work a run uses: BibTeX for strategies, model and accountant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.recipes import Recipe, named
from apportion.strategies.recipes.recipe import NoiseOf
from apportion.strategies.update import AdamW, LearningRate, Plain
from apportion.strategies.update.update_chain import parts_of

BIBTEX: Mapping[str, str] = {
    "abadi2016": """@inproceedings{abadi2016,
  author    = {Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H. Brendan and Mironov, Ilya and Talwar, Kunal
               and Zhang, Li},
  title     = {Deep Learning with Differential Privacy},
  booktitle = {Proceedings of the 2016 ACM SIGSAC Conference on Computer and Communications Security},
  year      = {2016}
}""",
    "papernot2021": """@inproceedings{papernot2021,
  author    = {Papernot, Nicolas and Thakurta, Abhradeep and Song, Shuang and Chien, Steve and Erlingsson, {\\'U}lfar},
  title     = {Tempered Sigmoid Activations for Deep Learning with Differential Privacy},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2021}
}""",
    "lin2022": """@article{lin2022,
  author  = {Lin, Guanbiao and others},
  title   = {Understanding Adaptive Gradient Clipping in {DP-SGD}, Empirically},
  journal = {International Journal of Intelligent Systems},
  year    = {2022}
}""",
    "du2021": """@misc{du2021,
  author = {Du, Jian and Li, Song and Chen, Xiangyi and Chen, Siheng and Hong, Mingyi},
  title  = {Dynamic Differential-Privacy Preserving {SGD}},
  note   = {arXiv:2111.00173},
  year   = {2021}
}""",
    "yu2018": """@misc{yu2018,
  author = {Yu, Da and Zhang, Huishuai and Chen, Wei},
  title  = {Improve the Gradient Perturbation Approach for Differentially Private Optimization},
  note   = {Workshop paper},
  year   = {2018}
}""",
    "yu2019": """@inproceedings{yu2019,
  author    = {Yu, Lei and Liu, Ling and Pu, Calton and Gursoy, Mehmet Emre and Truex, Stacey},
  title     = {Differentially Private Model Publishing for Deep Learning},
  booktitle = {IEEE Symposium on Security and Privacy},
  year      = {2019}
}""",
    "andrew2021": """@inproceedings{andrew2021,
  author    = {Andrew, Galen and Thakkar, Om and McMahan, H. Brendan and Ramaswamy, Swaroop},
  title     = {Differentially Private Learning with Adaptive Clipping},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021}
}""",
    "pichapati2019": """@misc{pichapati2019,
  author = {Pichapati, Venkatadheeraj and Suresh, Ananda Theertha and Yu, Felix X. and Reddi, Sashank J. and Kumar, Sanjiv},
  title  = {{AdaCliP}: Adaptive Clipping for Private {SGD}},
  note   = {arXiv:1908.07643},
  year   = {2019}
}""",
    "vanderveen2018": """@misc{vanderveen2018,
  author = {van der Veen, Koen Lennart and Seggers, Ruben and Bloem, Peter and Patrini, Giorgio},
  title  = {Three Tools for Practical Differential Privacy},
  note   = {arXiv:1812.02890},
  year   = {2018}
}""",
    "wei2025": """@article{wei2025,
  author  = {Wei, Chengkun and Li, Weixian and Gong, Chen and Chen, Wenzhi},
  title   = {{DC-SGD}: Differentially Private {SGD} with Dynamic Clipping through Gradient Norm Distribution Estimation},
  journal = {IEEE Transactions on Information Forensics and Security},
  note    = {arXiv:2503.22988},
  year    = {2025}
}""",
    "he2023": """@inproceedings{he2023,
  author    = {He, Jiyan and Li, Xuechen and Yu, Da and Zhang, Huishuai and Kulkarni, Janardhan and Lee, Yin Tat and
               Backurs, Arturs and Yu, Nenghai and Bian, Jiang},
  title     = {Exploring the Limits of Differentially Private Deep Learning with Group-wise Clipping},
  booktitle = {International Conference on Learning Representations},
  year      = {2023}
}""",
    "bu2023": """@inproceedings{bu2023,
  author    = {Bu, Zhiqi and Wang, Yu-Xiang and Zha, Sheng and Karypis, George},
  title     = {Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2023}
}""",
    "zhang2021": """@inproceedings{zhang2021,
  author    = {Zhang, Xinyue and Ding, Jiahao and Wu, Maoqiang and Wong, Stephen T. C. and Van Nguyen, Hien and Pan, Miao},
  title     = {Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data},
  booktitle = {Proceedings of the IEEE/CVF Winter Conference on Applications of Computer Vision},
  year      = {2021}
}""",
    "hong2022": """@inproceedings{hong2022,
  author    = {Hong, Junyuan and Wang, Zhangyang and Zhou, Jiayu},
  title     = {Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially Private Gradient Descent},
  booktitle = {ACM Conference on Fairness, Accountability, and Transparency},
  year      = {2022}
}""",
    "fay2023": """@article{fay2023,
  author  = {Fay, Dominik and Magn{\\'u}sson, Sindri and Sj{\\"o}lund, Jens and Johansson, Mikael},
  title   = {Adaptive Hyperparameter Selection for Differentially Private Gradient Descent},
  journal = {Transactions on Machine Learning Research},
  year    = {2023}
}""",
    "koskela2020": """@inproceedings{koskela2020,
  author    = {Koskela, Antti and Honkela, Antti},
  title     = {Learning Rate Adaptation for Differentially Private Learning},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year      = {2020}
}""",
    "lee2018": """@inproceedings{lee2018,
  author    = {Lee, Jaewoo and Kifer, Daniel},
  title     = {Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget},
  booktitle = {ACM SIGKDD International Conference on Knowledge Discovery and Data Mining},
  year      = {2018}
}""",
    "chen2020": """@inproceedings{chen2020,
  author    = {Chen, Chen and Lee, Jaewoo},
  title     = {Stochastic Adaptive Line Search for Differentially Private Optimization},
  booktitle = {IEEE International Conference on Big Data},
  year      = {2020}
}""",
    "feldman2021": """@inproceedings{feldman2021,
  author    = {Feldman, Vitaly and Zrnic, Tijana},
  title     = {Individual Privacy Accounting via a {R\\'enyi} Filter},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021}
}""",
    "polyak1992": """@article{polyak1992,
  author  = {Polyak, Boris T. and Juditsky, Anatoli B.},
  title   = {Acceleration of Stochastic Approximation by Averaging},
  journal = {SIAM Journal on Control and Optimization},
  year    = {1992}
}""",
    "rakhlin2012": """@inproceedings{rakhlin2012,
  author    = {Rakhlin, Alexander and Shamir, Ohad and Sridharan, Karthik},
  title     = {Making Gradient Descent Optimal for Strongly Convex Stochastic Optimization},
  booktitle = {International Conference on Machine Learning},
  year      = {2012}
}""",
    "loshchilov2019": """@inproceedings{loshchilov2019,
  author    = {Loshchilov, Ilya and Hutter, Frank},
  title     = {Decoupled Weight Decay Regularization},
  booktitle = {International Conference on Learning Representations},
  year      = {2019}
}""",
    "chooi2025": """@misc{chooi2025,
  author = {Chooi, Jay and Cong, Kevin and Li, Russell and Sun, Lillian},
  title  = {{DP-AdamW}: Investigating Decoupled Weight Decay and Bias Correction in Private Deep Learning},
  note   = {arXiv:2511.07843},
  year   = {2025}
}""",
    "tang2024": """@inproceedings{tang2024,
  author    = {Tang, Qiaoyue and Shpilevskiy, Frederick and L{\\'e}cuyer, Mathias},
  title     = {{DP-AdamBC}: Your {DP-Adam} Is Actually {DP-SGD} (Unless You Apply Bias Correction)},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2024}
}""",
    "zhang2024": """@inproceedings{zhang2024,
  author    = {Zhang, Xinwei and Bu, Zhiqi and Hong, Mingyi and Razaviyayn, Meisam},
  title     = {{DOPPLER}: Differentially Private Optimizers with Low-pass Filter for Privacy Noise Reduction},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2024}
}""",
    "goyal2017": """@misc{goyal2017,
  author = {Goyal, Priya and Doll{\\'a}r, Piotr and Girshick, Ross and Noordhuis, Pieter and Wesolowski, Lukasz and Kyrola, Aapo
            and Tulloch, Andrew and Jia, Yangqing and He, Kaiming},
  title  = {Accurate, Large Minibatch {SGD}: Training {ImageNet} in 1 Hour},
  note   = {arXiv:1706.02677},
  year   = {2017}
}""",
    "loshchilov2017": """@inproceedings{loshchilov2017,
  author    = {Loshchilov, Ilya and Hutter, Frank},
  title     = {{SGDR}: Stochastic Gradient Descent with Warm Restarts},
  booktitle = {International Conference on Learning Representations},
  year      = {2017}
}""",
    "doroshenko2022": """@article{doroshenko2022,
  author  = {Doroshenko, Vadym and Ghazi, Badih and Kamath, Pritish and Kumar, Ravi and Manurangsi, Pasin},
  title   = {Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions},
  journal = {Proceedings on Privacy Enhancing Technologies},
  year    = {2022}
}""",
}

_OF_STRATEGY = {
    "clip": {
        "AdaClip": "pichapati2019",
        "Automatic": "bu2023",
        "Decay": "lin2022",
        "FixedDeviation": "yu2018",
        "LeastError": "wei2025",
        "LinearDecay": "yu2018",
        "NormBased": "vanderveen2018",
        "NormPercentile": "wei2025",
        "Quantile": "andrew2021",
        "SensitivityDecay": "du2021",
        "Sequence": "lin2022",
    },
    "noise": {
        "AdaptivePrivacyUtility": "fay2023",
        "ExponentialDecay": "yu2019",
        "GeometricDecay": "zhang2021",
        "GrowingMu": "du2021",
        "InfluenceWeighted": "hong2022",
        "LinearDecay": "zhang2021",
        "PolynomialDecay": "yu2019",
        "PrivacyUtility": "fay2023",
        "StepDecay": "yu2019",
        "TimeDecay": "yu2019",
        "Validation": "yu2019",
    },
    "update": {
        "AdaDP": "koskela2020",
        "AdamW": "chooi2025",
        "DPAGD": "lee2018",
        "LowPass": "zhang2024",
        "NoisyBTLS": "chen2020",
        "TailAverage": "rakhlin2012",
    },
}
"""What is not here is plain DP-SGD, or a person's own."""


def cite(used: Any) -> str:
    """BibTeX entries for what a run, a plan or a recipe (also by name) uses: plain DP-SGD, the method, and how it was priced."""
    return "\n\n".join(BIBTEX[key] for key in citation_keys(used))


def citation_keys(used: Any) -> tuple[str, ...]:
    """The keys of `BIBTEX` that `used` rests on: the method's own first, then DP-SGD and the accountant."""
    layers = used.model.modules() if hasattr(used, "plan") else ()  # of a run
    used = getattr(used, "plan", used)
    used = getattr(used, "recipe", used)  # of a plan
    recipe = named(used) if isinstance(used, str) else used
    if not isinstance(recipe, Recipe):
        raise InvalidArgument(
            "used",
            validate.shown(used),
            "it is neither a run nor a plan nor a recipe",
            "Pass what train() returned, or a name",
        )
    if not recipe.private:
        return ()
    parts = {role: parts_of(getattr(recipe, role)) for role in _OF_STRATEGY}
    if isinstance(recipe.noise, NoiseOf):  # a clip that owns both roles
        parts["noise"] = parts["clip"]
    kinds = {role: [type(part).__name__ for part in chosen] for role, chosen in parts.items()}
    grouped = getattr(recipe.clip, "groups", "flat") != "flat"
    tempered = recipe.model is not None or any(type(layer).__name__ == "TemperedSigmoid" for layer in layers)
    own = [_OF_STRATEGY[role][kind] for role, some in kinds.items() for kind in some if kind in _OF_STRATEGY[role]]
    extra = {
        "he2023": grouped,
        "papernot2021": tempered,
        "tang2024": any(isinstance(part, AdamW) and part.corrected for part in parts["update"]),
        "loshchilov2019": "AdamW" in kinds["update"],
        "goyal2017": any(isinstance(part, LearningRate) and part.warm_up > 0 for part in parts["update"]),
        "loshchilov2017": any(isinstance(part, LearningRate) and part.decay == "cosine" for part in parts["update"]),
        "polyak1992": any(isinstance(part, Plain) and part.average is not None for part in parts["update"]),
        "feldman2021": recipe.needs_filter,
    }
    first = ["he2023"] if grouped and "Quantile" in kinds["clip"] else []
    keys = [*first, *own, *(key for key, used_here in extra.items() if used_here), "abadi2016", "doroshenko2022"]
    return tuple(dict.fromkeys(keys))
