"""Real lines of tegrastats and what each of them says.

In :data:`VALUES`: ``ram`` used and total MB; ``blocks`` number and kB of the largest free ones;
``swap`` used, total and cached MB; ``percent`` and ``mhz`` of each CPU core, ``None``: offline;
``emc`` percent and MHz; ``gpus`` percent, then the clocks; ``engines`` MHz, or MHz and percent,
``None``: off; ``temperatures`` now, or now and highest, ``None``: offline; ``rails`` mW now,
average and highest. A ``…`` in a line stands for what its publisher left out.
"""

LINES = {
    "agx_orin_r39": (
        "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU "
        "[23%@2201,10%@2201,4%@2201,14%@2201,30%@2201,18%@2201,10%@2201,"
        "10%@2201,33%@2201,7%@2201,5%@2201,27%@2201] EMC_FREQ 3%@3199 GR3D_FREQ "
        "12%@[1300,1300] NVENC0 off NVDEC0 off NVJPG0 off NVJPG1 off VIC off OFA off NVDLA0 "
        "off NVDLA1 off PVA0_FREQ off APE 174 cpu@52.968C/52.968C soc2@48.406C/48.406C "
        "soc0@49.531C/49.531C gpu@47.625C/47.625C VDD_GPU_SOC 5139mW/5139mW/5139mW "
        "VDD_CPU_CV 3268mW/3268mW/3268mW VIN_SYS_5V0 5500mW/5500mW/5500mW"
    ),
    "agx_orin_r36": (
        "05-09-2026 18:42:06 RAM 18207/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) "
        "CPU [14%@2188,5%@2112,8%@2035,14%@2201,46%@1267,47%@1267,2%@1267,"
        "10%@1267,4%@1036,5%@1036,6%@1036,10%@1036] EMC_FREQ 3%@2133 GR3D_FREQ 0%@[0,0] "
        "NVENC 79%@166 NVDEC off NVJPG off NVJPG1 off VIC 36%@115 OFA off NVDLA0 off NVDLA1 "
        "off PVA0_FREQ off APE 174 cpu@52.562C soc2@48.437C soc0@49.093C tj@52.562C "
        "soc1@49.656C VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW VIN_SYS_5V0 "
        "4707mW/4707mW"
    ),
    "agx_orin_r36_ragged": (
        "RAM 29114/30697MB (lfb 3x4MB)    SWAP 4915/15348MB (cached 1MB) CPU "
        "[3%@729,4%@729,0%@729,1%@729,0%@2201,100%@2201,1%@2201,"
        "0%@2201,100%@2201,0%@2201,0%@2201,0%@2201] EMC_FREQ 1%@2133 GR3D_FREQ 0%@[305,305] "
        "NVENC      off  NVDEC    off NVJPG off NVJPG1    off         VIC        "
        "off          OFA           off          NVDLA0    off       NVDLA1     off          "
        "PVA0_FREQ off         APE           174        cpu@53.062C soc2@48.25C "
        "soc0@48.843C  gpu@47.812C tj@53.062C soc1@48.968C    VDD_GPU_SOC 3205mW/3205mW "
        "VDD_CPU_CV 4405mW/4405mW VIN_SYS_5V0 4767mW/4767mW"
    ),
    "orin_nx_8gb_r36": (
        "05-15-2025 18:30:28 RAM 6982/7620MB (lfb 5x1MB) SWAP 2640/16384MB (cached 202MB) "
        "CPU [97%@1984,95%@1984,95%@1984,91%@1984,88%@1984,93%@247] EMC_FREQ 18%@3199 "
        "GR3D_FREQ 84%@[713] NVENC 1%@115 NVDEC 40%@115 NVJPG off NVJPG1 off VIC 31%@115 OFA "
        "off NVDLA0 off PVA0_FREQ off APE 174 cv0@63.031C cpu@65.562C soc2@64.156C "
        "soc0@63.031C cv1@62.937C gpu@63.5C tj@65.562C soc1@64.718C cv2@60.875C VDD_IN "
        "17946mW/15710mW VDD_CPU_GPU_CV 8896mW/7585mW VDD_SOC 3923mW/3515mW"
    ),
    "agx_orin_r35_dla_running": (
        "11-21-2025 08:49:48 RAM 13983/62780MB (lfb 424x4MB) SWAP 126/31390MB (cached 0MB) "
        "CPU [90%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,100%@2201,"
        "100%@2201,100%@2201,100%@2201,100%@2201,100%@2201] EMC_FREQ 1%@2133 GR3D_FREQ "
        "14%@[407,407] VIC_FREQ 115 NVDLA0_FREQ @1600 APE 174 CV0@73.625C CPU@77.281C "
        "Tboard@62C SOC2@70C Tdiode@62.25C SOC0@69.531C CV1@72.5C GPU@69.125C tj@77.281C "
        "SOC1@68.968C CV2@67.25C VDD_GPU_SOC 3150mW/2971mW VDD_CPU_CV 14312mW/12415mW "
        "VIN_SYS_5V0 4968mW/5048mW VDDQ_VDD2_1V8AO 1091mW/1091mW"
    ),
    "agx_orin_r35_idle": (
        "04-24-2023 00:01:24 RAM 1282/62795MB (lfb 15152x4MB) SWAP 0/31398MB (cached 0MB) "
        "CPU [0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,"
        "0%@729] EMC_FREQ 0%@2133 GR3D_FREQ 0%@0 GR3D2_FREQ 0%@0 VIC_FREQ 729 APE 174 "
        "CV0@-256C CPU@42.593C Tboard@32C SOC2@39.343C Tdiode@33.25C SOC0@39.375C CV1@-256C "
        "GPU@-256C tj@42.593C SOC1@40.468C CV2@-256C VDD_GPU_SOC 2399mW/2399mW VDD_CPU_CV "
        "400mW/400mW VIN_SYS_5V0 4032mW/4032mW NC 0mW/0mW VDDQ_VDD2_1V8AO 301mW/301mW NC "
        "0mW/0mW"
    ),
    "agx_orin_32gb_r35": (
        "10-16-2023 10:59:22 RAM 1205/30623MB (lfb 6429x4MB) SWAP 0/15311MB (cached 0MB) CPU "
        "[0%@729,0%@729,1%@729,0%@729,0%@729,0%@730,0%@730,0%@729,0%@729,0%@729,0%@729,"
        "0%@729] EMC_FREQ 0%@204 GR3D_FREQ 0%@114 GR3D2_FREQ 0%@114 NVJPG1 729 VIC_FREQ 729 "
        "APE 233 CV0@-256C CPU@43.5C Tdiode@32.5C SOC2@40.062C SOC0@40.5C CV1@-256C "
        "GPU@38.156C SOC1@39.125C CV2@-256C VDD_GPU_SOC 4788mW/4788mW VDD_CPU_CV 798mW/798mW "
        "VIN_SYS_5V0 3842mW/3842mW NC 0mW/0mW VDDQ_VDD2_1V8AO 707mW/707mW NC 0mW/0mW"
    ),
    "agx_orin_late_r35": (
        "04-11-2025 10:36:27 RAM 4321/62801MB (lfb 1759x4MB) SWAP 19/31400MB (cached 0MB) "
        "CPU [0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,0%@729,"
        "0%@729] EMC_FREQ 0%@2133 GR3D_FREQ 0%@[0,0] VIC_FREQ 729 APE 174 CV0@-256C "
        "CPU@44.562C Tboard@32C SOC2@40.093C Tdiode@33C SOC0@41.093C CV1@-256C GPU@-256C "
        "tj@44.343C SOC1@41.25C CV2@-256C VDD_GPU_SOC 2340mW/2340mW VDD_CPU_CV 390mW/390mW "
        "VIN_SYS_5V0 4025mW/4025mW NC 0mW/0mW VDDQ_VDD2_1V8AO 301mW/301mW NC 0mW/0mW"
    ),
    "orin_nx_r35_cores_offline": (
        "RAM 6334/15388MB (lfb 1770x4MB) SWAP 491/7694MB (cached 0MB) CPU "
        "[6%@729,9%@729,5%@729,16%@729,off,off,off,off] EMC_FREQ 0%@2133 GR3D_FREQ 0%@611 "
        "VIC_FREQ 729 APE 174 CV0@45.812C CPU@47.937C SOC2@46.093C SOC0@46.968C CV1@46.406C "
        "GPU@45.875C tj@48.875C SOC1@48.875C CV2@45.75C VDD_IN 5299mW/5299mW VDD_CPU_GPU_CV "
        "773mW/773mW VDD_SOC 1424mW/1424mW"
    ),
    "agx_orin_r36_not_root": (
        "RAM 2448/62840MB (lfb 2x4MB) SWAP 0/31420MB (cached 0MB) CPU "
        "[0%@2201,0%@2201,0%@2201,0%@2201,0%@2201,0%@2201,0%@2201,"
        "0%@2201,0%@2201,0%@2201,0%@2201,0%@2201] GR3D_FREQ 0% cpu@42C soc2@37.843C "
        "soc0@39.187C gpu@37.75C tj@42C soc1@37.937C VDD_GPU_SOC 4940mW/4940mW VDD_CPU_CV "
        "988mW/988mW VIN_SYS_5V0 4442mW/4442mW"
    ),
    "agx_orin_r35_not_root": (
        "03-08-2024 07:49:04 RAM 1438/30622MB (lfb 6704x4MB) SWAP 0/15311MB (cached 0MB) CPU "
        "[2%@729,0%@729,4%@729,0%@729,2%@729,0%@729,0%@729,2%@729] EMC_FREQ 0% GR3D_FREQ 0% "
        "CV0@-256C CPU@44.437C Tboard@36C SOC2@42.562C Tdiode@35.75C SOC0@42.062C CV1@-256C "
        "GPU@-256C tj@44.437C SOC1@43.031C CV2@-256C"
    ),
    "agx_xavier_r32": (
        "RAM 721/31927MB (lfb 7291x4MB) SWAP 0/15963MB (cached 0MB) CPU "
        "[2%@1190,0%@1190,0%@1190,0%@1190,off,off,off,off] EMC_FREQ 0%@665 GR3D_FREQ 0%@318 "
        "APE 150 MTS fg 0% bg 0% AO@37.5C GPU@37.5C Tdiode@40C PMIC@100C AUX@36C CPU@37.5C "
        "thermal@36.9C Tboard@37C GPU 0/0 CPU 311/311 SOC 932/932 CV 0/0 VDDRQ 621/621 SYS5V "
        "1482/1482"
    ),
    "agx_xavier_r32_loaded": (
        "RAM 10881/31919MB (lfb 4230x4MB) SWAP 0/15959MB (cached 0MB) CPU "
        "[17%@1190,17%@1190,18%@1190,25%@1190,17%@1336,15%@1340,23%@1543,15%@1574] EMC_FREQ "
        "55%@2133 GR3D_FREQ 95%@1377 APE 150 MTS fg 0% bg 10% AO@48C GPU@54.5C Tdiode@53.25C "
        "PMIC@100C AUX@46C CPU@49C thermal@49.45C Tboard@47C GPU 18401/18525 CPU 2301/2330 "
        "SOC 4602/4602 CV 0/0 VDDRQ 2914/2911 SYS5V 4632/4620"
    ),
    "xavier_nx_r32": (
        "RAM 4412/7772MB (lfb 237x4MB) SWAP 139/3886MB (cached 2MB) CPU "
        "[9%@1190,6%@1190,6%@1190,5%@1190,4%@1190,8%@1267] EMC_FREQ 10%@1600 GR3D_FREQ "
        "62%@306 APE 150 MTS fg 0% bg 0% AO@41.5C GPU@43C PMIC@100C AUX@41.5C CPU@43.5C "
        "thermal@42.55C VDD_IN 4067/4067 VDD_CPU_GPU_CV 738/738 VDD_SOC 1353/1353"
    ),
    "thor_r38_elided": (
        "05-17-2026 10:00:32 RAM 4208/125773MB (lfb 31x4MB) … EMC_FREQ 0%@665 GR3D_FREQ "
        "@[0,0,0] NVENC0_FREQ @0 NVENC1_FREQ @0 NVDEC0_FREQ @0 NVDEC1_FREQ @0 NVJPG0_FREQ @0 "
        "VIC off OFA_FREQ @0 PVA0_FREQ off APE 300 cpu@34.468C tj@34.5C … VDD_GPU 0mW/0mW "
        "VDD_CPU_SOC_MSS 4165mW/4165mW VIN_SYS_5V0 4126mW/4126mW"
    ),
    "thor_r39_elided": (
        "07-23-2026 15:29:26 … GR3D_FREQ @[314,314,314] NVENC0_FREQ @1556 … VIC 59%@423 "
        "OFA_FREQ @1556 PVA0_FREQ off APE 300 cpu@34.843C/34.843C … VDD_GPU "
        "4925mW/4925mW/4925mW"
    ),
    "agx_orin_32gb_r36_elided": (
        "RAM 1226/30698MB (lfb 13x4MB) SWAP 0/15349MB (cached 0MB) CPU "
        "[5%@729,0%@729,1%@729,0%@729,0%@729,0%@729,0%@729,1%@729,off,off,off,off] EMC_FREQ "
        "0%@3199 GR3D_FREQ 0%@[0,0] … NVDLA0 off NVDLA1 off PVA0_FREQ off … VDD_GPU_SOC "
        "3120mW/3120mW"
    ),
}

VALUES = {
    "agx_orin_r39": {
        "stamp": "07-25-2026 09:08:28",
        "ram": (20642, 62817),
        "blocks": (1, 2048),
        "percent": [23, 10, 4, 14, 30, 18, 10, 10, 33, 7, 5, 27],
        "mhz": [2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201],
        "emc": (3, 3199),
        "gpus": {"GR3D": (12, 1300, 1300)},
        "engines": {
            "NVENC0": None,
            "NVDEC0": None,
            "NVJPG0": None,
            "NVJPG1": None,
            "VIC": None,
            "OFA": None,
            "NVDLA0": None,
            "NVDLA1": None,
            "PVA0": None,
            "APE": 174,
        },
        "temperatures": {
            "cpu": (52.968, 52.968),
            "soc2": (48.406, 48.406),
            "soc0": (49.531, 49.531),
            "gpu": (47.625, 47.625),
        },
        "rails": {
            "VDD_GPU_SOC": (5139, 5139, 5139),
            "VDD_CPU_CV": (3268, 3268, 3268),
            "VIN_SYS_5V0": (5500, 5500, 5500),
        },
    },
    "agx_orin_r36": {
        "stamp": "05-09-2026 18:42:06",
        "ram": (18207, 62841),
        "blocks": (466, 4096),
        "swap": (86, 31420, 0),
        "percent": [14, 5, 8, 14, 46, 47, 2, 10, 4, 5, 6, 10],
        "mhz": [2188, 2112, 2035, 2201, 1267, 1267, 1267, 1267, 1036, 1036, 1036, 1036],
        "emc": (3, 2133),
        "gpus": {"GR3D": (0, 0, 0)},
        "engines": {
            "NVENC": (166, 79),
            "NVDEC": None,
            "NVJPG": None,
            "NVJPG1": None,
            "VIC": (115, 36),
            "OFA": None,
            "NVDLA0": None,
            "NVDLA1": None,
            "PVA0": None,
            "APE": 174,
        },
        "temperatures": {
            "cpu": 52.562,
            "soc2": 48.437,
            "soc0": 49.093,
            "tj": 52.562,
            "soc1": 49.656,
        },
        "rails": {
            "VDD_GPU_SOC": (2412, 2412),
            "VDD_CPU_CV": (1607, 1607),
            "VIN_SYS_5V0": (4707, 4707),
        },
    },
    "agx_orin_r36_ragged": {
        "ram": (29114, 30697),
        "blocks": (3, 4096),
        "swap": (4915, 15348, 1),
        "percent": [3, 4, 0, 1, 0, 100, 1, 0, 100, 0, 0, 0],
        "mhz": [729, 729, 729, 729, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201],
        "emc": (1, 2133),
        "gpus": {"GR3D": (0, 305, 305)},
        "engines": {
            "NVENC": None,
            "NVDEC": None,
            "NVJPG": None,
            "NVJPG1": None,
            "VIC": None,
            "OFA": None,
            "NVDLA0": None,
            "NVDLA1": None,
            "PVA0": None,
            "APE": 174,
        },
        "temperatures": {
            "cpu": 53.062,
            "soc2": 48.25,
            "soc0": 48.843,
            "gpu": 47.812,
            "tj": 53.062,
            "soc1": 48.968,
        },
        "rails": {
            "VDD_GPU_SOC": (3205, 3205),
            "VDD_CPU_CV": (4405, 4405),
            "VIN_SYS_5V0": (4767, 4767),
        },
    },
    "orin_nx_8gb_r36": {
        "stamp": "05-15-2025 18:30:28",
        "ram": (6982, 7620),
        "blocks": (5, 1024),
        "swap": (2640, 16384, 202),
        "percent": [97, 95, 95, 91, 88, 93],
        "mhz": [1984, 1984, 1984, 1984, 1984, 247],
        "emc": (18, 3199),
        "gpus": {"GR3D": (84, 713)},
        "engines": {
            "NVENC": (115, 1),
            "NVDEC": (115, 40),
            "NVJPG": None,
            "NVJPG1": None,
            "VIC": (115, 31),
            "OFA": None,
            "NVDLA0": None,
            "PVA0": None,
            "APE": 174,
        },
        "temperatures": {
            "cv0": 63.031,
            "cpu": 65.562,
            "soc2": 64.156,
            "soc0": 63.031,
            "cv1": 62.937,
            "gpu": 63.5,
            "tj": 65.562,
            "soc1": 64.718,
            "cv2": 60.875,
        },
        "rails": {
            "VDD_IN": (17946, 15710),
            "VDD_CPU_GPU_CV": (8896, 7585),
            "VDD_SOC": (3923, 3515),
        },
    },
    "agx_orin_r35_dla_running": {
        "stamp": "11-21-2025 08:49:48",
        "ram": (13983, 62780),
        "blocks": (424, 4096),
        "swap": (126, 31390, 0),
        "percent": [90, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100],
        "mhz": [2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201],
        "emc": (1, 2133),
        "gpus": {"GR3D": (14, 407, 407)},
        "engines": {"VIC": 115, "NVDLA0": 1600, "APE": 174},
        "temperatures": {
            "CV0": 73.625,
            "CPU": 77.281,
            "Tboard": 62,
            "SOC2": 70,
            "Tdiode": 62.25,
            "SOC0": 69.531,
            "CV1": 72.5,
            "GPU": 69.125,
            "tj": 77.281,
            "SOC1": 68.968,
            "CV2": 67.25,
        },
        "rails": {
            "VDD_GPU_SOC": (3150, 2971),
            "VDD_CPU_CV": (14312, 12415),
            "VIN_SYS_5V0": (4968, 5048),
            "VDDQ_VDD2_1V8AO": (1091, 1091),
        },
    },
    "agx_orin_r35_idle": {
        "stamp": "04-24-2023 00:01:24",
        "ram": (1282, 62795),
        "blocks": (15152, 4096),
        "swap": (0, 31398, 0),
        "percent": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "mhz": [729, 729, 729, 729, 729, 729, 729, 729, 729, 729, 729, 729],
        "emc": (0, 2133),
        "gpus": {"GR3D": (0, 0), "GR3D2": (0, 0)},
        "engines": {"VIC": 729, "APE": 174},
        "temperatures": {
            "CV0": None,
            "CPU": 42.593,
            "Tboard": 32,
            "SOC2": 39.343,
            "Tdiode": 33.25,
            "SOC0": 39.375,
            "CV1": None,
            "GPU": None,
            "tj": 42.593,
            "SOC1": 40.468,
            "CV2": None,
        },
        "rails": {
            "VDD_GPU_SOC": (2399, 2399),
            "VDD_CPU_CV": (400, 400),
            "VIN_SYS_5V0": (4032, 4032),
            "NC": (0, 0),
            "VDDQ_VDD2_1V8AO": (301, 301),
        },
    },
    "agx_orin_32gb_r35": {
        "stamp": "10-16-2023 10:59:22",
        "ram": (1205, 30623),
        "blocks": (6429, 4096),
        "swap": (0, 15311, 0),
        "percent": [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "mhz": [729, 729, 729, 729, 729, 730, 730, 729, 729, 729, 729, 729],
        "emc": (0, 204),
        "gpus": {"GR3D": (0, 114), "GR3D2": (0, 114)},
        "engines": {"NVJPG1": 729, "VIC": 729, "APE": 233},
        "temperatures": {
            "CV0": None,
            "CPU": 43.5,
            "Tdiode": 32.5,
            "SOC2": 40.062,
            "SOC0": 40.5,
            "CV1": None,
            "GPU": 38.156,
            "SOC1": 39.125,
            "CV2": None,
        },
        "rails": {
            "VDD_GPU_SOC": (4788, 4788),
            "VDD_CPU_CV": (798, 798),
            "VIN_SYS_5V0": (3842, 3842),
            "NC": (0, 0),
            "VDDQ_VDD2_1V8AO": (707, 707),
        },
    },
    "agx_orin_late_r35": {
        "stamp": "04-11-2025 10:36:27",
        "ram": (4321, 62801),
        "blocks": (1759, 4096),
        "swap": (19, 31400, 0),
        "percent": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "mhz": [729, 729, 729, 729, 729, 729, 729, 729, 729, 729, 729, 729],
        "emc": (0, 2133),
        "gpus": {"GR3D": (0, 0, 0)},
        "engines": {"VIC": 729, "APE": 174},
        "temperatures": {
            "CV0": None,
            "CPU": 44.562,
            "Tboard": 32,
            "SOC2": 40.093,
            "Tdiode": 33,
            "SOC0": 41.093,
            "CV1": None,
            "GPU": None,
            "tj": 44.343,
            "SOC1": 41.25,
            "CV2": None,
        },
        "rails": {
            "VDD_GPU_SOC": (2340, 2340),
            "VDD_CPU_CV": (390, 390),
            "VIN_SYS_5V0": (4025, 4025),
            "NC": (0, 0),
            "VDDQ_VDD2_1V8AO": (301, 301),
        },
    },
    "orin_nx_r35_cores_offline": {
        "ram": (6334, 15388),
        "blocks": (1770, 4096),
        "swap": (491, 7694, 0),
        "percent": [6, 9, 5, 16, None, None, None, None],
        "mhz": [729, 729, 729, 729, None, None, None, None],
        "emc": (0, 2133),
        "gpus": {"GR3D": (0, 611)},
        "engines": {"VIC": 729, "APE": 174},
        "temperatures": {
            "CV0": 45.812,
            "CPU": 47.937,
            "SOC2": 46.093,
            "SOC0": 46.968,
            "CV1": 46.406,
            "GPU": 45.875,
            "tj": 48.875,
            "SOC1": 48.875,
            "CV2": 45.75,
        },
        "rails": {"VDD_IN": (5299, 5299), "VDD_CPU_GPU_CV": (773, 773), "VDD_SOC": (1424, 1424)},
    },
    "agx_orin_r36_not_root": {
        "ram": (2448, 62840),
        "blocks": (2, 4096),
        "swap": (0, 31420, 0),
        "percent": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        "mhz": [2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201, 2201],
        "gpus": {"GR3D": (0,)},
        "temperatures": {
            "cpu": 42,
            "soc2": 37.843,
            "soc0": 39.187,
            "gpu": 37.75,
            "tj": 42,
            "soc1": 37.937,
        },
        "rails": {
            "VDD_GPU_SOC": (4940, 4940),
            "VDD_CPU_CV": (988, 988),
            "VIN_SYS_5V0": (4442, 4442),
        },
    },
    "agx_orin_r35_not_root": {
        "stamp": "03-08-2024 07:49:04",
        "ram": (1438, 30622),
        "blocks": (6704, 4096),
        "swap": (0, 15311, 0),
        "percent": [2, 0, 4, 0, 2, 0, 0, 2],
        "mhz": [729, 729, 729, 729, 729, 729, 729, 729],
        "emc": (0, None),
        "gpus": {"GR3D": (0,)},
        "temperatures": {
            "CV0": None,
            "CPU": 44.437,
            "Tboard": 36,
            "SOC2": 42.562,
            "Tdiode": 35.75,
            "SOC0": 42.062,
            "CV1": None,
            "GPU": None,
            "tj": 44.437,
            "SOC1": 43.031,
            "CV2": None,
        },
    },
    "agx_xavier_r32": {
        "ram": (721, 31927),
        "blocks": (7291, 4096),
        "swap": (0, 15963, 0),
        "percent": [2, 0, 0, 0, None, None, None, None],
        "mhz": [1190, 1190, 1190, 1190, None, None, None, None],
        "emc": (0, 665),
        "mts": (0, 0),
        "gpus": {"GR3D": (0, 318)},
        "engines": {"APE": 150},
        "temperatures": {
            "AO": 37.5,
            "GPU": 37.5,
            "Tdiode": 40,
            "PMIC": 100,
            "AUX": 36,
            "CPU": 37.5,
            "thermal": 36.9,
            "Tboard": 37,
        },
        "rails": {
            "GPU": (0, 0),
            "CPU": (311, 311),
            "SOC": (932, 932),
            "CV": (0, 0),
            "VDDRQ": (621, 621),
            "SYS5V": (1482, 1482),
        },
    },
    "agx_xavier_r32_loaded": {
        "ram": (10881, 31919),
        "blocks": (4230, 4096),
        "swap": (0, 15959, 0),
        "percent": [17, 17, 18, 25, 17, 15, 23, 15],
        "mhz": [1190, 1190, 1190, 1190, 1336, 1340, 1543, 1574],
        "emc": (55, 2133),
        "mts": (0, 10),
        "gpus": {"GR3D": (95, 1377)},
        "engines": {"APE": 150},
        "temperatures": {
            "AO": 48,
            "GPU": 54.5,
            "Tdiode": 53.25,
            "PMIC": 100,
            "AUX": 46,
            "CPU": 49,
            "thermal": 49.45,
            "Tboard": 47,
        },
        "rails": {
            "GPU": (18401, 18525),
            "CPU": (2301, 2330),
            "SOC": (4602, 4602),
            "CV": (0, 0),
            "VDDRQ": (2914, 2911),
            "SYS5V": (4632, 4620),
        },
    },
    "xavier_nx_r32": {
        "ram": (4412, 7772),
        "blocks": (237, 4096),
        "swap": (139, 3886, 2),
        "percent": [9, 6, 6, 5, 4, 8],
        "mhz": [1190, 1190, 1190, 1190, 1190, 1267],
        "emc": (10, 1600),
        "mts": (0, 0),
        "gpus": {"GR3D": (62, 306)},
        "engines": {"APE": 150},
        "temperatures": {
            "AO": 41.5,
            "GPU": 43,
            "PMIC": 100,
            "AUX": 41.5,
            "CPU": 43.5,
            "thermal": 42.55,
        },
        "rails": {"VDD_IN": (4067, 4067), "VDD_CPU_GPU_CV": (738, 738), "VDD_SOC": (1353, 1353)},
    },
    "thor_r38_elided": {
        "stamp": "05-17-2026 10:00:32",
        "ram": (4208, 125773),
        "blocks": (31, 4096),
        "emc": (0, 665),
        "gpus": {"GR3D": (None, 0, 0, 0)},
        "engines": {
            "NVENC0": None,
            "NVENC1": None,
            "NVDEC0": None,
            "NVDEC1": None,
            "NVJPG0": None,
            "VIC": None,
            "OFA": None,
            "PVA0": None,
            "APE": 300,
        },
        "temperatures": {"cpu": 34.468, "tj": 34.5},
        "rails": {"VDD_GPU": (0, 0), "VDD_CPU_SOC_MSS": (4165, 4165), "VIN_SYS_5V0": (4126, 4126)},
        "unknown": ["…", "…"],
    },
    "thor_r39_elided": {
        "stamp": "07-23-2026 15:29:26",
        "gpus": {"GR3D": (None, 314, 314, 314)},
        "engines": {"NVENC0": 1556, "VIC": (423, 59), "OFA": 1556, "PVA0": None, "APE": 300},
        "temperatures": {"cpu": (34.843, 34.843)},
        "rails": {"VDD_GPU": (4925, 4925, 4925)},
        "unknown": ["…", "…", "…"],
    },
    "agx_orin_32gb_r36_elided": {
        "ram": (1226, 30698),
        "blocks": (13, 4096),
        "swap": (0, 15349, 0),
        "percent": [5, 0, 1, 0, 0, 0, 0, 1, None, None, None, None],
        "mhz": [729, 729, 729, 729, 729, 729, 729, 729, None, None, None, None],
        "emc": (0, 3199),
        "gpus": {"GR3D": (0, 0, 0)},
        "engines": {"NVDLA0": None, "NVDLA1": None, "PVA0": None},
        "rails": {"VDD_GPU_SOC": (3120, 3120)},
        "unknown": ["…", "…"],
    },
    "orin_agx_l4t39.2_cores_off": {
        "stamp": "07-31-2026 14:58:05",
        "ram": (4714, 62878),
        "blocks": (7, 4096),
        "swap": (0, 2048, 0),
        "percent": [78, 33, 46, 55, 49, 48, 37, 57, None, None, None, None],
        "mhz": [1728, 1728, 1728, 1728, 729, 729, 729, 729, None, None, None, None],
        "emc": (2, 2133),
        "gpus": {"GR3D": (0, 0, 0)},
        "engines": {
            "NVENC0": None,
            "NVDEC0": None,
            "NVJPG0": None,
            "NVJPG1": None,
            "VIC": None,
            "OFA": None,
            "NVDLA0": None,
            "NVDLA1": None,
            "PVA0": None,
            "APE": 174,
        },
        "temperatures": {
            "cpu": (50.718, 50.718),
            "soc2": (47.656, 47.656),
            "soc0": (47.156, 47.156),
            "tj": (50.718, 50.718),
            "soc1": (49, 49),
        },
        "rails": {
            "VDD_GPU_SOC": (2265, 2265, 2265),
            "VDD_CPU_CV": (2643, 2643, 2643),
            "VIN_SYS_5V0": (4722, 4722, 4722),
        },
    },
    "thor_l4t38.4_no_dla": {
        "stamp": "05-17-2026 10:00:33",
        "ram": (4280, 125773),
        "blocks": (29, 4096),
        "swap": (0, 2048, 0),
        "percent": [0, 0, 0, 0, 1, 0, 1, 0, 0, 17, 1, 9, 0, 1],
        "mhz": [972, 972, 972, 972, 972, 972, 972, 972, 2601, 2601, 972, 972, 972, 972],
        "emc": (0, 665),
        "gpus": {"GR3D": (None, 0, 0, 0)},
        "engines": {
            "NVENC0": None,
            "NVENC1": None,
            "NVDEC0": None,
            "NVDEC1": None,
            "NVJPG0": None,
            "VIC": None,
            "OFA": None,
            "PVA0": None,
            "APE": 300,
        },
        "temperatures": {"cpu": 35.25, "tj": 36.031, "soc012": 36.062, "soc345": 34.5},
        "rails": {"VDD_GPU": (0, 0), "VDD_CPU_SOC_MSS": (4923, 4544), "VIN_SYS_5V0": (4327, 4227)},
    },
    "xavier_nx_jp5": {
        "ram": (2690, 6854),
        "blocks": (6, 1024),
        "swap": (479, 3427, 3),
        "percent": [3, 7, 1, 0, None, None],
        "mhz": [1904, 1906, 1905, 1907, None, None],
        "emc": (0, 1600),
        "gpus": {"GR3D": (0, 510)},
        "engines": {"VIC": 601, "APE": 150},
        "temperatures": {"AUX": 39, "CPU": 39.5, "AO": 37.5, "GPU": 37.5, "PMIC": 50},
        "rails": {"VDD_IN": (5079, 5079), "VDD_CPU_GPU_CV": (696, 696), "VDD_SOC": (1104, 1104)},
    },
    "xavier_nx_jp4": {
        "ram": (2387, 7774),
        "blocks": (961, 4096),
        "swap": (0, 3887, 0),
        "percent": [14, 9, 2, 4, 0, 1],
        "mhz": [1190, 1190, 1190, 1190, 1190, 1344],
        "emc": (1, 1600),
        "mts": (0, 3),
        "gpus": {"GR3D": (0, 114)},
        "engines": {"VIC": (115, 0), "APE": 150},
        "temperatures": {
            "AO": 31,
            "GPU": 31.5,
            "PMIC": 100,
            "AUX": 31.5,
            "CPU": 33,
            "thermal": 31.95,
        },
        "rails": {"VDD_IN": (3528, 3569), "VDD_CPU_GPU_CV": (410, 426), "VDD_SOC": (1107, 1115)},
    },
}

SAME_AS = {
    "orin_agx_l4t36.4.4_nvenc_active": "agx_orin_r36",
    "orin_agx_dla0_running_jp5_style": "agx_orin_r35_dla_running",
    "orin_agx_jp5_idle_no_dla_field": "agx_orin_late_r35",
    "orin_jp7_r39.2": "agx_orin_r39",
}
"""Names in the assets of lines that are above too."""

LOG = [
    (
        "16:33:42",
        17953,
        9,
        [7, 31, 7, 42, 4, 5, 6, 1],
        [1728, 1036, 1036, 1036, 1420, 729, 729, 729],
        (12, 204),
        39,
        [43.906, 40.406, 41.187, 40.093, 43.906, 40.437],
        [(2798, 2798), (799, 799), (3315, 3315)],
    ),
    (
        "16:33:43",
        17955,
        9,
        [20, 13, 2, 42, 1, 8, 5, 1],
        [1728, 1036, 1036, 1036, 729, 729, 729, 729],
        (12, 204),
        40,
        [43.625, 40.468, 40.968, 40.062, 43.625, 40.375],
        [(2797, 2798), (799, 799), (3215, 3265)],
    ),
    (
        "16:33:44",
        17956,
        9,
        [9, 66, 1, 0, 3, 9, 7, 2],
        [960, 960, 960, 960, 729, 729, 729, 729],
        (12, 204),
        35,
        [43.468, 40.562, 41.062, 39.781, 43.75, 40.281],
        [(2798, 2798), (799, 799), (3215, 3248)],
    ),
    (
        "16:33:45",
        17956,
        9,
        [33, 41, 3, 0, 5, 1, 3, 6],
        [1728, 960, 960, 960, 729, 729, 729, 729],
        (11, 204),
        32,
        [43.875, 40.5, 41.093, 40.187, 43.875, 40.406],
        [(2798, 2798), (799, 799), (3114, 3215)],
    ),
    (
        "16:33:47",
        17956,
        9,
        [30, 46, 4, 0, 1, 2, 3, 8],
        [1728, 1113, 1113, 1113, 729, 729, 729, 729],
        (11, 204),
        41,
        [43.625, 40.5, 41.031, 39.812, 43.625, 40.593],
        [(2798, 2798), (799, 799), (3215, 3215)],
    ),
    (
        "16:33:48",
        17954,
        10,
        [69, 8, 2, 0, 0, 2, 3, 7],
        [1728, 1113, 1113, 1113, 729, 729, 729, 729],
        (12, 204),
        39,
        [43.531, 40.562, 41.156, 40.062, 43.531, 40.437],
        [(2798, 2798), (799, 799), (3215, 3215)],
    ),
    (
        "16:33:49",
        17954,
        10,
        [24, 51, 3, 1, 1, 2, 6, 8],
        [1728, 908, 909, 1036, 729, 729, 729, 729],
        (12, 204),
        39,
        [43.718, 40.531, 41.062, 39.937, 43.718, 40.437],
        [(2798, 2798), (799, 799), (3114, 3200)],
    ),
    (
        "16:33:50",
        17954,
        10,
        [45, 2, 2, 0, 3, 30, 1, 7],
        [1728, 1113, 1113, 1113, 729, 729, 729, 729],
        (11, 204),
        41,
        [43.562, 40.531, 41.031, 40.031, 43.562, 40.656],
        [(2798, 2798), (799, 799), (3114, 3190)],
    ),
    (
        "16:33:51",
        17955,
        10,
        [61, 2, 16, 6, 2, 0, 3, 2],
        [1728, 1036, 1036, 1036, 729, 729, 729, 729],
        (11, 204),
        39,
        [43.531, 40.562, 41.093, 40.25, 43.531, 40.343],
        [(2798, 2798), (799, 799), (3114, 3181)],
    ),
    (
        "16:33:52",
        17955,
        10,
        [73, 5, 4, 7, 1, 0, 4, 0],
        [1728, 1113, 1113, 1113, 729, 729, 729, 729],
        (11, 204),
        39,
        [43.656, 40.562, 41.062, 40.031, 43.656, 40.406],
        [(2798, 2798), (799, 799), (3114, 3175)],
    ),
    (
        "16:33:53",
        17956,
        10,
        [31, 40, 4, 6, 0, 1, 2, 2],
        [729, 729, 729, 729, 729, 729, 729, 729],
        (3, 665),
        1,
        [43.718, 40.593, 41.125, 39.812, 43.718, 40.468],
        [(2798, 2798), (399, 763), (3114, 3169)],
    ),
    (
        "16:33:54",
        17957,
        9,
        [4, 1, 0, 9, 0, 2, 3, 0],
        [1728, 806, 806, 806, 729, 729, 729, 729],
        (5, 204),
        0,
        [43.781, 40.562, 41.125, 39.968, 43.531, 40.468],
        [(2399, 2765), (399, 732), (2712, 3131)],
    ),
    (
        "16:33:55",
        17957,
        9,
        [1, 0, 1, 9, 2, 4, 5, 0],
        [729, 729, 729, 729, 1420, 729, 729, 729],
        (2, 204),
        0,
        [43.531, 40.531, 41.187, 40.156, 43.531, 40.406],
        [(2399, 2737), (399, 707), (2712, 3099)],
    ),
    (
        "16:33:56",
        17958,
        9,
        [3, 1, 3, 7, 3, 0, 9, 0],
        [1728, 1651, 1497, 1497, 1344, 1344, 1344, 1344],
        (1, 204),
        0,
        [43.687, 40.531, 41.093, 39.781, 43.687, 40.375],
        [(2399, 2712), (399, 685), (2813, 3078)],
    ),
    (
        "16:33:57",
        17957,
        9,
        [3, 3, 2, 6, 2, 0, 5, 0],
        [806, 729, 729, 729, 729, 729, 729, 729],
        (1, 204),
        0,
        [43.437, 40.531, 41.218, 39.843, 43.437, 40.437],
        [(2399, 2692), (399, 666), (2813, 3061)],
    ),
]
"""The recording of an AGX Orin: time, RAM used, free blocks, percent and MHz of the eight cores
that are online, EMC, GPU percent, temperatures, rails."""
