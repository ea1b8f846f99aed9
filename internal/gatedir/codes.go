package gatedir

// Exit codes of lockgate's own. They are part of the protocol, because the
// holder's verdict carries the code that exec ends with.
const (
	CodeUsage       = 64  // wrong command line
	CodeUnavailable = 69  // the store could not be reached or refused us, or no verdict came
	CodeInternal    = 70  // a fault of our own
	CodeBusy        = 75  // somebody else has the lock
	CodeLost        = 76  // the lock was lost and CMD was stopped
	CodeConfig      = 78  // wrong settings
	CodeSignal      = 128 // + the number of the signal that ended it
)
