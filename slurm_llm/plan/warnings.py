"""What is allowed but doubtful in a spec on a site."""

from __future__ import annotations

from slurm_llm.plan.layout import Layout
from slurm_llm.sites.profile import Partition, SiteProfile
from slurm_llm.spec import JobSpec
from slurm_llm.topology import ParallelSizes


def find_warnings(
    spec: JobSpec, site: SiteProfile, partition: Partition, sizes: ParallelSizes, layout: Layout
) -> tuple[str, ...]:
    """Return one sentence for each doubt; `site` is the profile as it is for `partition`."""
    return (
        *_of_resources(spec, site, partition),
        *_of_idle_gpus(partition, layout),
        *_of_policies(site, partition),
        *_of_spread(sizes, layout),
        *_of_image(spec, site),
    )


def _of_resources(spec: JobSpec, site: SiteProfile, partition: Partition) -> list[str]:
    found = []
    cpus = spec.resources.cpus_per_rank or partition.cpus.per_rank or partition.cpus.per_node
    if not cpus and partition.cpus.style != "none":
        key = f"partitions.{next(iter(site.partitions))}.cpus.{'per_node' if partition.gpus_per_node else 'per_rank'}"
        todo = f"set resources.cpus_per_rank, or for every job {key} in the profile"
        found.append(f"neither spec nor site says how many CPUs a rank gets: 1 ({todo})")
    if (spec.resources.time or partition.time.default) is None:
        found.append("no time limit given: Slurm's own default for the partition counts")
    return found


def _of_idle_gpus(partition: Partition, layout: Layout) -> list[str]:
    idle = partition.gpus_per_node - layout.gpus_per_node
    if not (partition.whole_node or partition.exclusive is True) or idle <= 0:
        return []
    return [f"only whole nodes are given: {idle} of {partition.gpus_per_node} GPUs of each node stay idle"]


def _of_image(spec: JobSpec, site: SiteProfile) -> list[str]:
    image = None if spec.container is None else spec.container.image
    known = site.container.images
    if image is None or image in known or not known or any(mark in image for mark in "/#:"):
        return []
    listing = ", ".join(known)
    return [f"container.image: '{image}' is no alias of site {site.name} ({listing}): taken as a registry's own name"]


def _of_policies(site: SiteProfile, partition: Partition) -> list[str]:
    found, idle = [], site.policies.idle_gpu
    if idle is not None:
        found.append(
            f"site {site.name} ends jobs whose GPUs draw less than {idle.watts} W for {idle.after_s} s: "
            "a server that nobody asks anything may be ended"
        )
    if partition.preempt.possible:
        grace = partition.preempt.grace_s
        told = f"with {grace} s of warning" if grace else "without warning"
        found.append(f"jobs in this partition may be preempted, {told}")
    return found


def _of_spread(sizes: ParallelSizes, layout: Layout) -> list[str]:
    tensor, each = sizes.tensor_parallel_size, layout.gpus_per_instance_node
    # Groups are contiguous and nodes hold contiguous ranks: they line up only when one divides the other.
    if tensor <= each and each % tensor == 0:
        return []
    return [f"a tensor group of {tensor} spans several nodes ({each} a node): its all-reduces cross the network"]
