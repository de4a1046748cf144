"""The manifest of a Ray cluster fits the image that it names."""

import re
from pathlib import Path

import yaml

import fedattack

ROOT = Path(__file__).parents[2]


def test_ray_image_and_user_are_those_of_the_image():
    cluster, policy = yaml.safe_load_all((ROOT / "docker" / "raycluster.yaml").read_text())
    spec = cluster["spec"]
    pods = [spec["headGroupSpec"]["template"]["spec"]]
    pods += [group["template"]["spec"] for group in spec["workerGroupSpecs"]]
    constraints, dockerfile = (ROOT / "constraints.txt").read_text(), (ROOT / "docker" / "Dockerfile").read_text()
    assert f"\nray=={spec['rayVersion']}\n" in constraints
    (user,) = re.findall(r"useradd --uid ([0-9]+)", dockerfile)
    for pod in pods:
        (container,) = pod["containers"]
        assert container["image"].rpartition(":")[2] == fedattack.__version__
        assert pod["securityContext"]["runAsUser"] == int(user)
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        environment = {one["name"]: {key: one[key] for key in one if key != "name"} for one in container["env"]}
        assert environment["RAY_AUTH_MODE"] == {"value": "token"}
        assert environment["RAY_AUTH_TOKEN"] == {
            "valueFrom": {"secretKeyRef": {"name": "fedattack-ray", "key": "token"}}
        }
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["exec"]["command"][-1].startswith("ray health-check --address ")
    labels = {"ray.io/cluster": cluster["metadata"]["name"]}
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
