"""Inter-process transport of batches: from worker processes to the main process."""
