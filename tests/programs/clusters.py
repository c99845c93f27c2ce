"""A script: starts a cluster of two worker processes, prints its address, and ends with its standard input."""

import sys


def dask_cluster():
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


def ray_cluster():
    import ray

    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    {"dask": dask_cluster, "ray": ray_cluster}[sys.argv[1]]()
