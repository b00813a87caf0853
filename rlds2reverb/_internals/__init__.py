"""What we use of other libraries beyond their public interface: one file a library, each with the version tried."""
