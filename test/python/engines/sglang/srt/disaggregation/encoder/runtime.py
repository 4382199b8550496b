def launch_dp_worker(server_args, dp_rank, gpu_id, dispatch_path,
                     release_path, result_path):
    return "worker", dp_rank
