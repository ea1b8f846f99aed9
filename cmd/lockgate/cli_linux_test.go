package main

import (
	"os"
	"testing"
)

func TestThreadsAreThereBeforeTheyAreNeeded(t *testing.T) {
	reserveThreads()()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) <= spareThreads {
		t.Errorf("%d threads; want more than %d", len(threads), spareThreads)
	}
}
