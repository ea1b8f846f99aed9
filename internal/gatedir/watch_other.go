//go:build !linux

package gatedir

type sysWatch struct{}

func (w *Watcher) start(*Dir) bool { return false }

func (w *Watcher) interrupt() {}
