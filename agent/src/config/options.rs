//! The one table of options: every row is a field of [`Config`], its names, its form, its default and its doc.

use std::net::IpAddr;
use std::time::Duration;

use ferric_types::Secret;

use super::value::{self, Scheme, TlsCurve, TlsVersion};

/// How far an option is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does what its doc says.
    Full,
    /// It is read and checked, but what it switches is not built yet; giving it is noted in the log.
    Later,
    /// It steers something this agent has no need of (a tool it does not run, a limit it does not have).
    NotNeeded,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Ironic's name of the option; the key in configuration files and, with dashes, the command line flag.
    pub name: &'static str,
    /// Name on the kernel command line; empty when it cannot be given there.
    pub kernel: &'static str,
    /// Section in configuration files.
    pub section: &'static str,
    /// What a value must look like.
    pub form: &'static str,
    /// Value without any configuration; empty for none.
    pub default: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Whether its value must not be shown.
    pub secret: bool,
    /// How far it is of use.
    pub support: Support,
    /// Reads a value into its field; `None` when the text has not the right form.
    pub set: fn(&mut Config, &str) -> Option<()>,
}

macro_rules! options {
    (
        $( $field:ident: $type:ty, $kernel:literal, $section:literal $name:literal, $form:ident, $read:path,
           $default:literal, $support:ident, $doc:literal $(, $secret:ident)?; )*
        @unused { $( $un_section:literal $un_name:literal, $un_default:literal, $un_support:ident, $un_doc:literal; )* }
        @conductor { $( $(#[$meta:meta])* $known:ident: $known_type:ty; )* }
    ) => {
        /// Settings of the agent. What is in it does not change but by a lookup's answer
        /// ([`Config::apply_lookup`]).
        #[derive(Debug, Clone)]
        pub struct Config {
            $( #[doc = $doc] pub $field: $type, )*
            $( $(#[$meta])* pub $known: $known_type, )*
        }

        impl Config {
            pub(super) fn blank() -> Self {
                Self { $( $field: Default::default(), )* $( $known: Default::default(), )* }
            }
        }

        /// Every option there is.
        pub const OPTIONS: &[OptionSpec] = &[
            $( OptionSpec {
                name: $name, kernel: $kernel, section: $section, form: value::$form, default: $default, doc: $doc,
                secret: is_secret!($($secret)?), support: Support::$support,
                set: |config, text| { config.$field = $read(text)?; Some(()) },
            }, )*
            $( OptionSpec {
                name: $un_name, kernel: "", section: $un_section, form: value::TEXT, default: $un_default, doc: $un_doc,
                secret: false, support: Support::$un_support, set: |_, _| Some(()),
            }, )*
        ];
    };
}

macro_rules! is_secret {
    () => {
        false
    };
    (secret) => {
        true
    };
}

options! {
    // Reaching the conductor.
    api_urls: Vec<String>, "ipa-api-url", "DEFAULT" "api_url", URL_LIST, value::root_url_list, "", Full,
        "Root of the Ironic API; several are tried in order.";
    global_request_id: Option<String>, "ipa-global-request-id", "DEFAULT" "global_request_id", TEXT, value::text, "", Full,
        "Sent as X-OpenStack-Request-ID with every call to Ironic.";
    ironic_api_version: Option<String>, "ipa-ironic-api-version", "DEFAULT" "ironic_api_version", API_VERSION, value::api_version, "", Full,
        "API version to assume instead of asking for it.";
    lookup_timeout: Duration, "ipa-lookup-timeout", "DEFAULT" "lookup_timeout", SECONDS, value::seconds, "600", Full,
        "How long to go on looking up the node.";
    lookup_interval: Duration, "ipa-lookup-interval", "DEFAULT" "lookup_interval", SECONDS, value::seconds, "1", Full,
        "Shortest pause between two lookups.";
    http_request_timeout: Duration, "ipa-http-request-timeout", "DEFAULT" "http_request_timeout", SECONDS_NOT_ZERO, value::seconds_not_zero, "30", Full,
        "Limit for connecting to Ironic and for each read from it.";
    agent_token: Option<Secret<String>>, "ipa-agent-token", "DEFAULT" "agent_token", TEXT, value::secret, "", Full,
        "Agent token made beforehand by Ironic.", secret;
    insecure: bool, "ipa-insecure", "DEFAULT" "insecure", BOOLEAN, value::boolean, "false", Full,
        "Do not verify the certificates of servers.";
    cafile: Option<String>, "", "DEFAULT" "cafile", TEXT, value::text, "", Full,
        "File with the certificates that servers are verified with, instead of the built-in ones.";
    certfile: Option<String>, "", "DEFAULT" "certfile", TEXT, value::text, "", Full,
        "File with the client certificate shown to servers; needs keyfile.";
    keyfile: Option<String>, "", "DEFAULT" "keyfile", TEXT, value::text, "", Full,
        "File with the key of the client certificate.";
    http_proxy: Option<Secret<String>>, "http_proxy", "DEFAULT" "http_proxy", TEXT, value::secret, "", Full,
        "Proxy for http URLs; Ferric's own. The environment variable of that name counts too, before everything else.", secret;
    https_proxy: Option<Secret<String>>, "https_proxy", "DEFAULT" "https_proxy", TEXT, value::secret, "", Full,
        "Proxy for https URLs; as http_proxy.", secret;
    no_proxy: Option<String>, "no_proxy", "DEFAULT" "no_proxy", TEXT, value::text, "", Full,
        "Hosts, domains and networks reached without proxy, separated by commas; as http_proxy.";

    // The agent's own API.
    listen_host: Option<IpAddr>, "ipa-listen-host", "DEFAULT" "listen_host", IP, value::ip, "", Full,
        "Address the agent's API listens on; without it every address of both families.";
    listen_port: u16, "ipa-listen-port", "DEFAULT" "listen_port", PORT, value::port, "9999", Full,
        "Port the agent's API listens on.";
    advertise_host: Option<IpAddr>, "ipa-advertise-host", "DEFAULT" "advertise_host", IP, value::ip, "", Full,
        "Address in the callback URL and the certificate; without it the source address of the route to Ironic.";
    advertise_port: u16, "ipa-advertise-port", "DEFAULT" "advertise_port", PORT, value::port, "9999", Full,
        "Port in the callback URL.";
    advertise_protocol: Scheme, "ipa-advertise-protocol", "DEFAULT" "advertise_protocol", SCHEME, value::scheme, "http", Full,
        "Scheme of the callback URL; an automatic certificate makes it https.";
    network_interface: Option<String>, "ipa-network-interface", "DEFAULT" "network_interface", TEXT, value::text, "", Full,
        "NIC whose IPv4 address is advertised, instead of a route lookup.";
    ip_lookup_attempts: u32, "ipa-ip-lookup-attempts", "DEFAULT" "ip_lookup_attempts", COUNT_NOT_ZERO, value::count_not_zero, "6", Full,
        "Rounds of the search for the address to advertise.";
    ip_lookup_sleep: Duration, "ipa-ip-lookup-timeout", "DEFAULT" "ip_lookup_sleep", SECONDS, value::seconds, "10", Full,
        "Pause between those rounds.";
    listen_tls: bool, "", "DEFAULT" "listen_tls", BOOLEAN, value::boolean, "false", Full,
        "Serve the API with the certificate of tls_cert_file and tls_key_file.";
    tls_cert_file: Option<String>, "", "DEFAULT" "tls_cert_file", TEXT, value::text, "", Full,
        "Certificate chain for listen_tls, PEM.";
    tls_key_file: Option<String>, "", "DEFAULT" "tls_key_file", TEXT, value::text, "", Full,
        "Private key for listen_tls, PEM.";
    enable_auto_tls: bool, "", "DEFAULT" "enable_auto_tls", BOOLEAN, value::boolean, "true", Full,
        "Make a certificate and tell Ironic about it, when the API is new enough.";
    auto_tls_allowed_clock_skew: Duration, "", "DEFAULT" "auto_tls_allowed_clock_skew", SECONDS, value::seconds, "3600", Full,
        "How far into the past the certificate is valid.";
    tls_min_version: TlsVersion, "ipa-tls-min-version", "DEFAULT" "tls_min_version", TLS_VERSION, value::tls_version, "1.2", Full,
        "Lowest TLS version, of the API and towards servers.";
    tls_cipher_suites: Option<String>, "ipa-tls-cipher-suites", "DEFAULT" "tls_cipher_suites", TEXT, value::text, "", Full,
        "Cipher suites of TLS 1.2 as an OpenSSL list.";
    tls_certificate_curve: TlsCurve, "ipa-tls-certificate-curve", "DEFAULT" "tls_certificate_curve", TLS_CURVE, value::tls_curve, "p384", Full,
        "Key of the automatic certificate.";

    // Inspection.
    inspection_callback_urls: Vec<String>, "ipa-inspection-callback-url", "DEFAULT" "inspection_callback_url", URL_LIST, value::url_list, "", Full,
        "Where inspection data is posted; full URLs, tried in order.";
    inspection_collectors: Option<Vec<String>>, "ipa-inspection-collectors", "DEFAULT" "inspection_collectors", LIST, value::optional_list, "", Full,
        "Collectors to run; default,logs when there is a callback URL.";
    inspection_dhcp_wait_timeout: Duration, "ipa-inspection-dhcp-wait-timeout", "DEFAULT" "inspection_dhcp_wait_timeout", SECONDS, value::seconds, "60", Full,
        "How long the inspection waits for addresses; 0 for not at all.";
    inspection_dhcp_all_interfaces: bool, "ipa-inspection-dhcp-all-interfaces", "DEFAULT" "inspection_dhcp_all_interfaces", BOOLEAN, value::boolean, "false", Full,
        "Wait for an address on every NIC, not only on the one that booted.";
    inspection_benchmarks: Vec<String>, "ipa-inspection-benchmarks", "DEFAULT" "inspection_benchmarks", LIST, value::list, "", Full,
        "Benchmarks of the extra-hardware collector: cpu, mem, disk; disks are only read.";
    collect_lldp: bool, "ipa-collect-lldp", "DEFAULT" "collect_lldp", BOOLEAN, value::boolean, "false", Full,
        "Put received LLDP frames into the inventory.";
    lldp_timeout: Duration, "ipa-lldp-timeout", "DEFAULT" "lldp_timeout", SECONDS, value::float_seconds, "30.0", Full,
        "How long to wait for LLDP frames.";

    // Hardware.
    hardware_initialization_delay: Duration, "ipa-hardware-initialization-delay", "DEFAULT" "hardware_initialization_delay", SECONDS, value::seconds, "0", Full,
        "Pause after the hardware managers are loaded.";
    disk_wait_attempts: u32, "ipa-disk-wait-attempts", "DEFAULT" "disk_wait_attempts", COUNT, value::count, "10", Full,
        "Tries to find a root disk; 0 for not waiting.";
    disk_wait_delay: Duration, "ipa-disk-wait-delay", "DEFAULT" "disk_wait_delay", SECONDS, value::seconds, "3", Full,
        "Pause between those tries.";
    guard_special_filesystems: bool, "ipa-guard-special-filesystems", "DEFAULT" "guard_special_filesystems", BOOLEAN, value::boolean, "true", Full,
        "Refuse to clean disks with cluster file systems.";
    enable_vlan_interfaces: Vec<String>, "ipa-enable-vlan-interfaces", "DEFAULT" "enable_vlan_interfaces", LIST, value::list, "", Full,
        "VLAN interfaces to make: IF.VID, where IF is a name or an address; IF alone or all for those that LLDP frames name, with collect_lldp.";
    bootif: Option<String>, "BOOTIF", "DEFAULT" "bootif", TEXT, value::text, "", Full,
        "Address of the NIC that booted the machine, as the boot loader gives it.";
    boot_method: Option<String>, "boot_method", "DEFAULT" "boot_method", TEXT, value::text, "", Later,
        "vmedia when booted from virtual media; parameters on the media are then read too.";
    ir_pub_id: Option<String>, "ir_pub_id", "DEFAULT" "ir_pub_id", TEXT, value::text, "", Later,
        "Publisher of the virtual media with network data.";

    // Images.
    image_download_connection_timeout: Duration, "ipa-image-download-connection-timeout", "DEFAULT" "image_download_connection_timeout", SECONDS_NOT_ZERO, value::seconds_not_zero, "60", Full,
        "Limit for connecting to an image server and for each read from it.";
    image_download_connection_retries: u32, "ipa-image-download-connection-retries", "DEFAULT" "image_download_connection_retries", COUNT, value::count, "9", Full,
        "Further tries after a failed download.";
    image_download_connection_retry_interval: Duration, "ipa-image-download-connection-retry-interval", "DEFAULT" "image_download_connection_retry_interval", SECONDS, value::seconds, "10", Full,
        "Pause between those tries.";
    image_download_max_duration: Option<Duration>, "ipa-image-download-max-duration", "DEFAULT" "image_download_max_duration", SECONDS, value::optional_seconds, "0", Full,
        "Limit for a whole download; 0 for none.";
    md5_enabled: bool, "", "DEFAULT" "md5_enabled", BOOLEAN, value::boolean, "true", Full,
        "Accept MD5 checksums of images.";
    disable_bootc_deploy: bool, "", "DEFAULT" "disable_bootc_deploy", BOOLEAN, value::boolean, "false", Full,
        "Refuse bootable containers also where the ramdisk has podman; without it they are always refused.";
    disable_deep_image_inspection: bool, "", "DEFAULT" "disable_deep_image_inspection", BOOLEAN, value::boolean, "false", Full,
        "Trust the format an image says it has.";
    permitted_image_formats: Vec<String>, "", "DEFAULT" "permitted_image_formats", LIST, value::list, "raw,gpt,qcow2", Full,
        "Formats an image may have.";
    image_read_back: bool, "ipa-image-read-back", "DEFAULT" "image_read_back", BOOLEAN, value::boolean, "false", Full,
        "Read an image back from the disk and compare it before its partition table is written; Ferric's own.";
    image_server_auth_strategy: Option<String>, "", "DEFAULT" "image_server_auth_strategy", TEXT, value::text, "noauth", Full,
        "How to log in to the image server: noauth or http_basic.";
    image_server_user: Option<String>, "", "DEFAULT" "image_server_user", TEXT, value::text, "", Full,
        "User for the image server.";
    image_server_password: Option<Secret<String>>, "", "DEFAULT" "image_server_password", TEXT, value::secret, "", Full,
        "Password for the image server.", secret;
    config_drive_rebuild: bool, "", "DEFAULT" "config_drive_rebuild", BOOLEAN, value::boolean, "false", Full,
        "Always rebuild the configdrive as a FAT file system.";
    ignore_bootloader_failure: bool, "ipa-ignore-bootloader-failure", "DEFAULT" "ignore_bootloader_failure", BOOLEAN, value::boolean, "false", Full,
        "Go on when the boot loader cannot be installed, unless the call says otherwise.";
    enable_bios_bootloader_install: bool, "", "DEFAULT" "enable_bios_bootloader_install", BOOLEAN, value::boolean, "false", Full,
        "Have partition images install GRUB for BIOS by their own programs, which then run as root, locked into the image.";
    inject_files_priority: u32, "ipa-inject-files-priority", "DEFAULT" "inject_files_priority", PRIORITY, value::priority, "0", Full,
        "Priority of the step inject_files; 0 runs it only when asked for.";
    efi_system_partition_size: u32, "", "disk_utils" "efi_system_partition_size", COUNT, value::count, "550", Full,
        "Size in MiB of the EFI system partition made for partition images.";
    bios_boot_partition_size: u32, "", "disk_utils" "bios_boot_partition_size", COUNT, value::count, "1", Full,
        "Size in MiB of the BIOS boot partition made for partition images.";

    // Time, discovery, logs.
    ntp_server: Option<String>, "ipa-ntp-server", "DEFAULT" "ntp_server", TIME_SERVER, value::time_server, "", Later,
        "Server to set the clock from.";
    fail_if_clock_not_set: bool, "", "DEFAULT" "fail_if_clock_not_set", BOOLEAN, value::boolean, "false", Later,
        "Stop when the clock cannot be set.";
    use_mdns: bool, "ipa-use-mdns", "mdns" "use_mdns", BOOLEAN, value::boolean, "false", Later,
        "Look for Ironic by multicast DNS when no API URL is given.";
    debug: bool, "ipa-debug", "DEFAULT" "debug", BOOLEAN, value::lenient_boolean, "false", Full,
        "Log debugging messages.";

    @unused {
        "mdns" "allowed_overrides", "inspection_callback_url,ntp_server", Later, "Options that multicast DNS may override.";
        "mdns" "lookup_attempts", "3", Later, "Tries to find a service by multicast DNS.";
        "mdns" "params", "", Later, "Parameters to assume in place of those found.";
        "mdns" "interfaces", "", Later, "NICs to use for multicast DNS.";
        "container" "allow_arbitrary_containers", "false", Later, "Run any container as a step.";
        "container" "allowed_containers", "", Later, "Containers that may run as a step.";
        "container" "container_steps_file", "/etc/ironic-python-agent.d/mysteps.yaml", Later, "Steps that run containers.";
        "container" "runner", "podman", Later, "Program that runs containers.";
        "container" "pull_options", "", Later, "Options for fetching a container.";
        "container" "run_options", "--rm --network=host --tls-verify=false", Later, "Options for running a container.";
        "DEFAULT" "introspection_daemon", "false", NotNeeded, "Ironic's agent can repeat its inspection by itself; Ferric inspects when asked.";
        "DEFAULT" "introspection_daemon_post_interval", "300", NotNeeded, "See introspection_daemon.";
        "disk_utils" "dd_block_size", "1M", NotNeeded, "Ferric writes without dd.";
        "disk_utils" "partition_detection_attempts", "3", NotNeeded, "Ferric waits for the kernel's event.";
        "disk_utils" "partprobe_attempts", "10", NotNeeded, "Ferric re-reads tables without partprobe.";
        "disk_utils" "image_convert_memory_limit", "2048", NotNeeded, "Ferric converts while it streams, in a fixed amount of memory.";
        "disk_utils" "image_convert_attempts", "3", NotNeeded, "Ferric runs no converter.";
        "disk_partitioner" "check_device_interval", "1", NotNeeded, "Ferric waits for the kernel's event.";
        "disk_partitioner" "check_device_max_retries", "20", NotNeeded, "Ferric waits for the kernel's event.";
        "metrics" "backend", "noop", NotNeeded, "Ferric sends no metrics.";
        "metrics_statsd" "statsd_host", "localhost", NotNeeded, "Ferric sends no metrics.";
        "metrics_statsd" "statsd_port", "8125", NotNeeded, "Ferric sends no metrics.";
        "DEFAULT" "log_file", "", NotNeeded, "Ferric logs to the consoles, to journald where there is one, and to memory.";
        "DEFAULT" "log_dir", "", NotNeeded, "See log_file.";
        "DEFAULT" "use_stderr", "", NotNeeded, "See log_file.";
        "DEFAULT" "use_syslog", "", NotNeeded, "See log_file.";
        "DEFAULT" "use_journal", "", NotNeeded, "See log_file.";
    }

    @conductor {
        /// Time within which the conductor expects a heartbeat; only a lookup tells.
        heartbeat_timeout: Option<Duration>;
        /// Whether the BMC's address is left out of the inventory; only a lookup tells.
        skip_bmc_detect: bool;
    }
}

impl Default for Config {
    /// Every option at the default of the table.
    fn default() -> Self {
        let mut config = Self::blank();
        for option in OPTIONS.iter().filter(|option| !option.default.is_empty()) {
            // A default of the wrong form cannot get past the test that walks the table.
            let _set = (option.set)(&mut config, option.default);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_defaults_have_the_right_form() {
        let mut keys = BTreeSet::new();
        let mut kernel = BTreeSet::new();
        for option in OPTIONS {
            assert!(keys.insert((option.section, option.name)), "{}", option.name);
            assert!(option.kernel.is_empty() || kernel.insert(option.kernel), "{}", option.kernel);
            assert!(option.doc.ends_with('.'), "{}: {}", option.name, option.doc);
            if !option.default.is_empty() {
                assert_eq!((option.set)(&mut Config::blank(), option.default), Some(()), "{}", option.name);
            }
        }
    }

    #[test]
    fn every_kernel_parameter_of_the_protocol_is_known() {
        let names = "ipa-api-url ipa-global-request-id ipa-listen-host ipa-listen-port ipa-advertise-host ipa-advertise-port \
            ipa-advertise-protocol ipa-tls-min-version ipa-tls-cipher-suites ipa-tls-certificate-curve \
            ipa-ip-lookup-attempts ipa-ip-lookup-timeout ipa-network-interface ipa-lookup-timeout ipa-lookup-interval \
            ipa-lldp-timeout ipa-collect-lldp ipa-inspection-callback-url ipa-inspection-collectors \
            ipa-inspection-dhcp-wait-timeout ipa-inspection-dhcp-all-interfaces ipa-inspection-benchmarks \
            ipa-hardware-initialization-delay ipa-disk-wait-attempts ipa-disk-wait-delay ipa-insecure ipa-ntp-server \
            ipa-agent-token ipa-image-download-connection-timeout ipa-image-download-connection-retries \
            ipa-image-download-connection-retry-interval ipa-image-download-max-duration ipa-ironic-api-version \
            ipa-enable-vlan-interfaces ipa-ignore-bootloader-failure ipa-inject-files-priority \
            ipa-guard-special-filesystems ipa-http-request-timeout ipa-use-mdns ipa-debug BOOTIF boot_method";
        for name in names.split_whitespace() {
            assert!(OPTIONS.iter().any(|option| option.kernel == name), "{name}");
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let mut config = Config::default();
        for option in OPTIONS.iter().filter(|option| option.secret) {
            (option.set)(&mut config, "hunter2").unwrap();
        }
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
        assert_eq!(config.agent_token.unwrap().expose(), "hunter2");
    }
}
